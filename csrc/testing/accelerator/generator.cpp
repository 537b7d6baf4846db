#include "testing/accelerator/generator.h"

#include <ATen/EmptyTensor.h>

#include <cstring>
#include <vector>

#include "testing/accelerator/memory.h"

namespace remint::testing {

TestGenerator::TestGenerator(c10::DeviceIndex device)
    : GeneratorImpl(c10::Device(kDeviceType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

c10::DeviceType TestGenerator::device_type() {
  return kDeviceType;
}

std::uint64_t TestGenerator::draw() {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Ops of CUDA advance by multiples of four.
  const std::uint64_t at = offset_;
  offset_ += 4;
  return (seed_ + 1) * 0x9e3779b97f4a7c15ULL + at;
}

void TestGenerator::set_current_seed(std::uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

std::uint64_t TestGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void TestGenerator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK(state.numel() * static_cast<std::int64_t>(state.itemsize()) == 16 && state.is_cpu(),
              "the state of a generator of this device is a CPU tensor of 16 bytes: its seed and its offset");
  const auto* bytes = static_cast<const char*>(state.data());
  std::memcpy(&seed_, bytes, 8);
  std::memcpy(&offset_, bytes + 8, 8);
}

c10::intrusive_ptr<c10::TensorImpl> TestGenerator::get_state() const {
  const at::Tensor state = at::detail::empty_cpu({16}, at::kByte);
  auto* bytes = static_cast<char*>(state.data_ptr());
  std::memcpy(bytes, &seed_, 8);
  std::memcpy(bytes + 8, &offset_, 8);
  return state.getIntrusivePtr();
}

TestGenerator* TestGenerator::clone_impl() const {
  auto* copy = new TestGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < DeviceMemory::get().num_devices(); ++i) {
      made->push_back(at::make_generator<TestGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  return all->at(static_cast<std::size_t>(device < 0 ? 0 : device));
}

}  // namespace remint::testing
