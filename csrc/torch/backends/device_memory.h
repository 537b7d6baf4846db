// How the memory of one type of accelerator is taken over: its own allocator stays, and one that asks budgets
// first is put before it. Everything else about accelerators is the same for all of them: accelerator.cpp.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "torch/backends/backend.h"

namespace remint {

struct DeviceMemory {
  c10::DeviceType type;
  // The device's own allocator.
  c10::DeviceAllocator* (*ordinary)();
  // Puts the hook before it.
  void (*install)(const AllocatorHook& hook);
  // Whether what is called now becomes part of a graph that runs later, again and again.
  bool (*is_capturing)(c10::DeviceIndex device);
  // Has the device's own allocator call `free_memory` when it finds no free memory of its own. Null if it has
  // no such call: then there is no soft wall.
  void (*on_shortage)(bool (*free_memory)(c10::Device device));
};

// Each type adds itself when the module is loaded. A type whose file was left out of the build is not known.
struct AddDeviceMemory {
  explicit AddDeviceMemory(const DeviceMemory& memory);
};
// Null if the type is not known.
const DeviceMemory* device_memory(c10::DeviceType type);

}  // namespace remint
