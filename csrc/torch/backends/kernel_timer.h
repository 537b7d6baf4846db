// What kernels cost on a device whose kernels run after their calls have returned.
//
// The clock of the host measures nothing there. Each of the first calls of a signature gets a pair of timing
// events. Nobody waits for them: they are read after an op for whose result the host has waited anyway,
// because then they have come for sure, and in every run at the same op. Until then the bytes that an op
// touches say what it may cost.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "base/types.h"

namespace remint {

class KernelTimer {
 public:
  // How often a signature is measured.
  static constexpr std::uint32_t kCalls = 3;

  explicit KernelTimer(c10::Device device) : device_(device) {}

  static Nanoseconds guess(Bytes touched) { return 1000 + touched / 64; }

  // Around a kernel. `measured` is told its cost, some time after `stop`.
  void start();
  void stop(std::function<void(Nanoseconds)> measured);
  // The kernel did not run, or other work came in between.
  void give_up() { running_.reset(); }
  // The host has waited for the current stream: reads what came on it.
  void read();

 private:
  struct Pair {
    explicit Pair(c10::Stream stream);
    c10::Stream stream;
    c10::Event start;
    c10::Event stop;
    std::function<void(Nanoseconds)> measured;
  };
  c10::Stream current() const;

  const c10::Device device_;
  std::optional<Pair> running_;
  std::deque<Pair> pending_;
};

}  // namespace remint
