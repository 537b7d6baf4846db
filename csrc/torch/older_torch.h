// What newer versions of torch have, for older ones: the only file that asks for the version of torch.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>
#include <torch/version.h>

#include <cstddef>
#include <string>
#include <utility>

#define REMINT_TORCH_SINCE(minor) \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

namespace remint {

// Takes an object away that is handed on to the threads that work for this one. Afterwards there is none, or
// null.
inline void stop_handing_on(const std::string& name) {
#if REMINT_TORCH_SINCE(13)
  at::impl::ThreadLocalPythonObjects::erase(name);
#else
  at::impl::ThreadLocalPythonObjects::set(name, nullptr);
#endif
}

// The free bytes of a device, and all of them. Only soft walls use them, and these need torch 2.13.
inline std::pair<std::size_t, std::size_t> memory_info(c10::DeviceAllocator& allocator,
                                                       c10::DeviceIndex device) {
#if REMINT_TORCH_SINCE(10)
  return allocator.getMemoryInfo(device);
#else
  return {0, 0};
#endif
}

#if REMINT_TORCH_SINCE(12)

// Ends what `release_data_and_set_meta_custom_data_ptr_error_msg_` began: the memory can be read again.
inline void allow_access(c10::StorageImpl& storage) {
  storage.clear_data_ptr_access_error_msg_();
}

#else

void allow_access(c10::StorageImpl& storage);

// Before torch 2.12 only private members can do it. An explicit instantiation may name them:
// [temp.spec.general].
template <bool c10::StorageImpl::* kThrows, void (c10::StorageImpl::*refresh_checks)()>
struct AllowsAccess {
  friend void allow_access(c10::StorageImpl& storage) {
    storage.*kThrows = false;
    storage.get_extra_meta().custom_data_ptr_error_msg_ = std::nullopt;
    (storage.*refresh_checks)();
  }
};
template struct AllowsAccess<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                             &c10::StorageImpl::refresh_has_data_ptr_check>;

#endif

}  // namespace remint

#undef REMINT_TORCH_SINCE
