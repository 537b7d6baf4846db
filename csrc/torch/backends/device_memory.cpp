#include "torch/backends/device_memory.h"

#include <vector>

namespace remint {
namespace {

std::vector<DeviceMemory>& known() {
  static auto* all = new std::vector<DeviceMemory>();
  return *all;
}

}  // namespace

AddDeviceMemory::AddDeviceMemory(const DeviceMemory& memory) {
  known().push_back(memory);
}

const DeviceMemory* device_memory(c10::DeviceType type) {
  for (const DeviceMemory& memory : known()) {
    if (memory.type == type) return &memory;
  }
  return nullptr;
}

}  // namespace remint
