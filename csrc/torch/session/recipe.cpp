#include "torch/session/recipe.h"

#include <ATen/core/List.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstring>

namespace remint {
namespace {

// Whether two arguments are the same to the bit; false also where that is not known.
bool surely_same(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor()) return b.isTensor() && !a.toTensor().defined() && !b.toTensor().defined();
  if (a.isNone()) return b.isNone();
  if (a.isInt()) return b.isInt() && a.toInt() == b.toInt();
  if (a.isBool()) return b.isBool() && a.toBool() == b.toBool();
  if (a.isDouble()) {
    // Zeros have signs.
    if (!b.isDouble()) return false;
    const double x = a.toDouble();
    const double y = b.toDouble();
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (a.isDevice()) return b.isDevice() && a.toDevice() == b.toDevice();
  if (a.isString()) return b.isString() && a.toStringRef() == b.toStringRef();
  if (a.isList() && b.isList()) {
    const c10::ArrayRef<c10::IValue> x = a.toListRef();
    const c10::ArrayRef<c10::IValue> y = b.toListRef();
    return x.size() == y.size() &&
           std::equal(x.begin(), x.end(), y.begin(), [](const c10::IValue& one, const c10::IValue& other) {
             return surely_same(one, other);
           });
  }
  return false;
}

}  // namespace

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

bool TensorLook::operator==(const TensorLook& other) const {
  return offset == other.offset && dtype == other.dtype && conjugate == other.conjugate &&
         negative == other.negative && requires_grad == other.requires_grad && extents == other.extents;
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

bool RecipeForm::Slot::operator==(const Slot& other) const {
  return kind == other.kind && index == other.index && argument == other.argument &&
         element == other.element && look == other.look;
}

bool RecipeForm::surely_same(const RecipeForm& other) const {
  return op == other.op && keys == other.keys && local_keys.included_ == other.local_keys.included_ &&
         local_keys.excluded_ == other.local_keys.excluded_ && grad_mode == other.grad_mode &&
         slots == other.slots && results == other.results && arguments.size() == other.arguments.size() &&
         std::equal(arguments.begin(), arguments.end(), other.arguments.begin(),
                    [](const c10::IValue& a, const c10::IValue& b) { return remint::surely_same(a, b); });
}

torch::jit::Stack make_stack(const RecipeForm& form, const std::vector<at::Tensor>& tensors) {
  torch::jit::Stack stack = form.arguments;
  for (std::size_t s = 0; s < form.slots.size(); ++s) {
    const RecipeForm::Slot& slot = form.slots[s];
    if (slot.element < 0) {
      stack[slot.argument] = tensors[s];
      continue;
    }
    // The list of the recipe itself must not be written to.
    if (s == 0 || form.slots[s - 1].argument != slot.argument) {
      stack[slot.argument] = c10::IValue(stack[slot.argument].toList().copy());
    }
    stack[slot.argument].toList().set(static_cast<std::size_t>(slot.element), c10::IValue(tensors[s]));
  }
  return stack;
}

std::shared_ptr<const RecipeForm> RecipeTable::share(const RecipeForm& draft, std::uint64_t signature) {
  latest_.resize(kLatest);
  std::shared_ptr<const RecipeForm>& latest = latest_[signature >> 54];
  if (latest != nullptr && latest->surely_same(draft)) return latest;
  auto form = std::make_shared<const RecipeForm>(draft);
  // What would never be found the same is not kept for later.
  if (form->surely_same(*form)) latest = form;
  return form;
}

}  // namespace remint
