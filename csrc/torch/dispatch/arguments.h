// Tensors among the arguments and results of an operator call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace remint {

// The place of a tensor within an argument: none of a list, or in a list of lists, which only collectives
// have.
constexpr std::int32_t kNoElement = -1;
constexpr std::int32_t kNestedElement = -2;

// Calls visit(tensor, element) for all tensors in `value` (a tensor, a list of them, an optional one, a list
// of lists), undefined ones included, in order.
template <typename Visit>
void for_tensors(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor(), kNoElement);
  } else if (value.isList()) {
    std::int32_t i = 0;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        visit(element.toTensor(), i);
      } else if (element.isList()) {
        for (const c10::IValue& inner : element.toListRef()) {
          if (inner.isTensor()) visit(inner.toTensor(), kNestedElement);
        }
      }
      ++i;
    }
  }
}

// The storage of a tensor; none for what has no bytes. Under torch.compile, the size of a meta storage can be
// a symbol: then it has none. (The device is not asked for: it is part of the DataPtr, which another thread
// may be writing.)
inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return storage == nullptr || storage->sym_nbytes().is_heap_allocated() ? nullptr : storage;
}

}  // namespace remint
