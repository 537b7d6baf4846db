// Random numbers of the test devices: a seed and an offset, as on CUDA. Every op that draws takes one number
// of the sequence, and seeds a CPU generator with it.
#pragma once

#include <ATen/core/Generator.h>

namespace remint::testing {

class TestGenerator final : public c10::GeneratorImpl {
 public:
  explicit TestGenerator(c10::DeviceIndex device);
  static c10::DeviceType device_type();

  // The seed of the CPU generator for the next op.
  std::uint64_t draw();

  void set_current_seed(std::uint64_t seed) override;
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

 private:
  TestGenerator* clone_impl() const override;

  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace remint::testing
