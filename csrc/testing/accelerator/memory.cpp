#include "testing/accelerator/memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

namespace remint::testing {
namespace {

DeviceMemory* opened = nullptr;

char* map(int file, std::size_t nbytes, int protection) {
  void* address = mmap(nullptr, nbytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(address != MAP_FAILED, "remint.testing.accelerator: cannot map ", nbytes,
              " bytes. Ask load() for less memory.");
  return static_cast<char*>(address);
}

}  // namespace

DeviceMemory::DeviceMemory(int num_devices, std::size_t nbytes) : num_devices_(num_devices), nbytes_(nbytes) {
  const std::size_t total = nbytes * static_cast<std::size_t>(num_devices);
  const int file = memfd_create("remint.testing.accelerator", 0);
  TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(total)) == 0,
              "remint.testing.accelerator: cannot reserve ", total, " bytes. Ask load() for less memory.");
  tensors_see_ = map(file, total, PROT_NONE);
  streams_see_ = map(file, total, PROT_READ | PROT_WRITE);
  close(file);
}

void DeviceMemory::open(int num_devices, std::size_t nbytes) {
  if (opened == nullptr) opened = new DeviceMemory(num_devices, nbytes);
}

const DeviceMemory& DeviceMemory::get() {
  return *opened;
}

char* DeviceMemory::for_streams(const void* address) const {
  if (address == nullptr) return nullptr;
  TORCH_CHECK(contains(address), "remint.testing.accelerator: an address that is not of this device");
  return streams_see_ + (static_cast<const char*>(address) - tensors_see_);
}

}  // namespace remint::testing
