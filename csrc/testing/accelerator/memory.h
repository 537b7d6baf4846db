// The memory of the test devices: memory that the host cannot touch.
//
// One file in memory, mapped twice. Tensors hold addresses of the first mapping, which nobody may read or
// write: a host access ends the process, as on a GPU. The threads of the streams use the second one.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace remint::testing {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

class DeviceMemory {
 public:
  // Reserves `nbytes` for each of `num_devices` devices, once per process. Pages come when they are written.
  static void open(int num_devices, std::size_t nbytes);
  static const DeviceMemory& get();

  int num_devices() const { return num_devices_; }
  std::size_t nbytes_per_device() const { return nbytes_; }
  // Where the memory of a device begins, as tensors see it.
  char* base(c10::DeviceIndex device) const {
    return tensors_see_ + nbytes_ * static_cast<std::size_t>(device);
  }
  c10::DeviceIndex device_of(const void* address) const {
    return static_cast<c10::DeviceIndex>(
        static_cast<std::size_t>(static_cast<const char*>(address) - tensors_see_) / nbytes_);
  }
  bool contains(const void* address) const {
    return address >= tensors_see_ &&
           address < tensors_see_ + nbytes_ * static_cast<std::size_t>(num_devices_);
  }
  // Where a stream finds the bytes at `address`. Null stays null.
  char* for_streams(const void* address) const;

 private:
  DeviceMemory(int num_devices, std::size_t nbytes);

  int num_devices_;
  std::size_t nbytes_;
  char* tensors_see_;
  char* streams_see_;
};

}  // namespace remint::testing
