#include "torch/session/recipe.h"

#include <ATen/core/List.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>

namespace remint {

bool is_whole(const at::Tensor& tensor, const c10::StorageImpl& storage) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == storage.nbytes();
}

at::Generator generator_of(const Backend& backend, const Operator& op, const torch::jit::Stack& stack,
                           std::size_t first) {
  if (op.generator >= 0) {
    const c10::IValue& argument = stack[first + static_cast<std::size_t>(op.generator)];
    if (argument.isGenerator()) return argument.toGenerator();
  }
  return backend.default_generator();
}

void TensorLook::assign(const at::Tensor& tensor) {
  const at::IntArrayRef s = tensor.sizes();
  const at::IntArrayRef t = tensor.strides();
  extents.resize_for_overwrite(s.size() + t.size());
  std::copy(t.begin(), t.end(), std::copy(s.begin(), s.end(), extents.begin()));
  offset = tensor.storage_offset();
  dtype = tensor.dtype();
  conjugate = tensor.is_conj();
  negative = tensor.is_neg();
  requires_grad = tensor.requires_grad();
}

std::size_t TensorLook::nbytes() const {
  std::int64_t last = offset + 1;
  for (std::size_t d = 0; d < sizes().size(); ++d) {
    if (sizes()[d] == 0) return 0;
    last += (sizes()[d] - 1) * strides()[d];
  }
  return static_cast<std::size_t>(last) * dtype.itemsize();
}

at::Tensor TensorLook::tensor_at(Backend& backend, void* address, std::size_t nbytes) const {
  // Resizable, for outputs that an op sizes itself.
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, c10::DataPtr(address, backend.device()),
      c10::GetAllocator(backend.device().type()), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(backend.dispatch_key()), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes(), strides(), offset);
  if (conjugate) tensor._set_conj(true);
  if (negative) tensor._set_neg(true);
  // Some kernels choose their way by it.
  if (requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

torch::jit::Stack make_stack(const Recipe& recipe, const std::vector<at::Tensor>& tensors) {
  torch::jit::Stack stack = recipe.arguments;
  for (std::size_t s = 0; s < recipe.slots.size(); ++s) {
    const Recipe::Slot& slot = recipe.slots[s];
    if (slot.element < 0) {
      stack[slot.argument] = tensors[s];
      continue;
    }
    // The list of the recipe itself must not be written to.
    if (s == 0 || recipe.slots[s - 1].argument != slot.argument) {
      stack[slot.argument] = c10::IValue(stack[slot.argument].toList().copy());
    }
    stack[slot.argument].toList().set(static_cast<std::size_t>(slot.element), c10::IValue(tensors[s]));
  }
  return stack;
}

}  // namespace remint
