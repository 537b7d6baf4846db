#include "torch/session/recipe.h"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <c10/core/StorageImpl.h>

namespace remint {

bool is_plain(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl->key_set();
  static const c10::DispatchKeySet never(
      {c10::DispatchKey::Python, c10::DispatchKey::Quantized, c10::DispatchKey::MkldnnCPU,
       c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr, c10::DispatchKey::NestedTensor,
       c10::DispatchKey::ZeroTensor, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
       c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Batched});
  return keys.has_backend(c10::BackendComponent::CPUBit) && keys.has(c10::DispatchKey::Dense) &&
         !keys.has_any(never) && impl->has_storage() && !impl->has_symbolic_sizes_strides();
}

bool is_whole(const at::Tensor& tensor, const c10::StorageImpl& storage) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == storage.nbytes();
}

at::Generator generator_of(const Operator& op, const torch::jit::Stack& stack, std::size_t first) {
  if (op.generator >= 0) {
    const c10::IValue& argument = stack[first + static_cast<std::size_t>(op.generator)];
    if (argument.isGenerator()) return argument.toGenerator();
  }
  return at::detail::getDefaultCPUGenerator();
}

void TensorLook::assign(const at::Tensor& tensor) {
  const at::IntArrayRef s = tensor.sizes();
  const at::IntArrayRef t = tensor.strides();
  sizes.assign(s.begin(), s.end());
  strides.assign(t.begin(), t.end());
  offset = tensor.storage_offset();
  dtype = tensor.dtype();
  conjugate = tensor.is_conj();
  negative = tensor.is_neg();
  requires_grad = tensor.requires_grad();
}

std::size_t TensorLook::nbytes() const {
  std::int64_t last = offset + 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return static_cast<std::size_t>(last) * dtype.itemsize();
}

at::Tensor TensorLook::tensor_at(void* address, std::size_t nbytes) const {
  // Resizable, for outputs that an op sizes itself.
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, c10::DataPtr(address, c10::Device(c10::DeviceType::CPU)),
      c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  if (conjugate) tensor._set_conj(true);
  if (negative) tensor._set_neg(true);
  // Some kernels choose their way by it.
  if (requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

std::unique_ptr<RandomState> RandomState::of(at::Generator& generator) {
  auto* cpu = dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  if (cpu == nullptr) return nullptr;
  std::lock_guard<std::mutex> lock(cpu->mutex_);
  auto state = std::make_unique<RandomState>();
  state->engine = cpu->engine();
  state->next_float = cpu->next_float_normal_sample();
  state->next_double = cpu->next_double_normal_sample();
  return state;
}

void RandomState::restore(at::CPUGeneratorImpl& generator) const {
  std::lock_guard<std::mutex> lock(generator.mutex_);
  generator.set_engine(engine);
  generator.set_next_float_normal_sample(next_float);
  generator.set_next_double_normal_sample(next_double);
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
