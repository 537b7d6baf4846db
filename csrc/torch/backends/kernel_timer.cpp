#include "torch/backends/kernel_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace remint {

// More are not kept: a program that never waits for its device would collect events for ever.
constexpr std::size_t kPending = 1024;

KernelTimer::Pair::Pair(c10::Stream stream)
    : stream(stream),
      start(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT),
      stop(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT) {}

c10::Stream KernelTimer::current() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

void KernelTimer::start() {
  running_.reset();
  if (pending_.size() >= kPending) return;
  running_.emplace(current());
  running_->start.record(running_->stream);
}

void KernelTimer::stop(std::function<void(Nanoseconds)> measured) {
  if (!running_) return;
  running_->stop.record(running_->stream);
  running_->measured = std::move(measured);
  pending_.push_back(*std::exchange(running_, std::nullopt));
}

void KernelTimer::read() {
  const c10::Stream stream = current();
  std::deque<Pair> left;
  for (Pair& pair : pending_) {
    if (pair.stream != stream || !pair.stop.query()) {
      left.push_back(std::move(pair));
      continue;
    }
    const double milliseconds = pair.start.elapsedTime(pair.stop);
    pair.measured(std::max<Nanoseconds>(1, static_cast<Nanoseconds>(milliseconds * 1e6)));
  }
  pending_ = std::move(left);
}

}  // namespace remint
