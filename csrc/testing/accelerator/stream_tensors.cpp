#include "testing/accelerator/stream_tensors.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>

#include "testing/accelerator/memory.h"

namespace remint::testing {
namespace {

at::Tensor on_storage(c10::Storage storage, const at::Tensor& look, c10::DispatchKeySet keys) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, look.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(look.sizes(), look.strides(), look.storage_offset());
  if (look.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (look.is_conj()) made._set_conj(true);
  if (look.is_neg()) made._set_neg(true);
  return made;
}

}  // namespace

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDeviceType;
}

c10::Storage& StreamTensors::storage_for(const at::Tensor& tensor) {
  c10::StorageImpl* impl = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (auto& [known, storage] : storages_) {
    if (known == impl) return storage;
  }
  const void* address = metadata_only_ ? impl->_mutable_data_ptr_no_checks().get() : impl->data();
  char* bytes = DeviceMemory::get().for_streams(address);
  // Resizable, for an `out` that the kernel sizes itself.
  c10::Storage storage(c10::Storage::use_byte_size_t(), impl->nbytes(),
                       c10::DataPtr(bytes, c10::Device(c10::DeviceType::CPU)),
                       c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
  return storages_.emplace_back(impl, std::move(storage)).second;
}

at::Tensor StreamTensors::of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  if (is_on_device(tensor)) return on_storage(storage_for(tensor), tensor, cpu);
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) return tensor;
  return on_storage(tensor.storage(), tensor, cpu);
}

at::Tensor view_like(const at::Tensor& base, const at::Tensor& look) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), look.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(look.sizes(), look.strides(), look.storage_offset());
  view._set_conj(look.is_conj());
  view._set_neg(look.is_neg());
  return view;
}

at::Tensor empty_on_device(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                           at::ScalarType dtype) {
  const c10::DeviceGuard guard(c10::Device(kDeviceType, device));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kDeviceType),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

std::vector<at::Tensor> tensors_of(const torch::jit::Stack& stack) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : stack) {
    map_tensors(value, [&](const at::Tensor& tensor) {
      all.push_back(tensor);
      return tensor;
    });
  }
  return all;
}

}  // namespace remint::testing
