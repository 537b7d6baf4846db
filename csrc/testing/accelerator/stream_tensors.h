// Tensors as the threads of streams see them: CPU tensors on the same bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <utility>
#include <vector>

namespace remint::testing {

bool is_on_device(const at::Tensor& tensor);

// Makes CPU tensors on the bytes of device tensors. Tensors that share a storage share one again, because
// some kernels look. The bytes are not owned: they stay as long as the order of the streams says.
class StreamTensors {
 public:
  // For ops that touch no bytes: the storages may have none at the moment.
  explicit StreamTensors(bool metadata_only = false) : metadata_only_(metadata_only) {}
  // Host tensors come back as another tensor on the same storage, which keeps the storage: work may outlive
  // the program's tensor, and a thread of a stream must not be the one that frees a Python object.
  at::Tensor of(const at::Tensor& tensor);
  const std::vector<std::pair<const c10::StorageImpl*, c10::Storage>>& storages() const { return storages_; }

 private:
  c10::Storage& storage_for(const at::Tensor& tensor);

  const bool metadata_only_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

// A view of `base` that looks like `look`, which may be on other bytes.
at::Tensor view_like(const at::Tensor& base, const at::Tensor& look);
// Memory of the current device, from whichever allocator PyTorch has for it now.
at::Tensor empty_on_device(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                           at::ScalarType dtype);

// Replaces every tensor in `value` (a tensor or a list) by what `replace` returns.
template <typename Replace>
c10::IValue map_tensors(const c10::IValue& value, Replace&& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> list = value.toTensorVector();
    for (at::Tensor& tensor : list) tensor = replace(tensor);
    return list;
  }
  if (!value.isList()) return value;
  c10::impl::GenericList list = value.toList();
  bool copied = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const c10::IValue element = list.get(i);
    if (!element.isTensor()) continue;
    if (!std::exchange(copied, true)) list = list.copy();
    list.set(i, replace(element.toTensor()));
  }
  return list;
}

// All tensors in the arguments or the results of an op, in order.
std::vector<at::Tensor> tensors_of(const torch::jit::Stack& stack);

}  // namespace remint::testing
