// Streams of the test devices, and events. A stream is a thread with a queue: work begins after the call that
// asked for it has returned, in order within a stream, in no order between streams.
//
// Each stream has a clock of its own that work advances by what it is said to cost. Events take their time
// from it, so that the time between two events is the same in every run, whatever the machine does.
#pragma once

#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

namespace remint::testing {

using DeviceNanoseconds = std::int64_t;

// What happened so far, over all devices.
struct Counts {
  std::uint64_t kernels = 0;           // ops that ran
  std::uint64_t waited_kernels = 0;    // of these, those that the host waited for
  std::uint64_t work = 0;              // pieces of work that streams were given
  std::uint64_t synchronizations = 0;  // times the host waited because it was asked to
  std::uint64_t events = 0;            // events that were recorded
  std::uint64_t stream_waits = 0;      // times a stream was told to wait for an event
  std::uint64_t allocations = 0;       // from the device's own allocator
};

// Adds to one of the counts.
void count(std::uint64_t Counts::* which);
Counts counts();

class DeviceStream {
 public:
  DeviceStream(c10::DeviceIndex device, c10::StreamId id);

  // Does `work` after all that was pushed before. It takes `cost` on the clock of the stream.
  void push(DeviceNanoseconds cost, std::function<void()> work);
  // The same; `work` is told the stream, to read and set its clock.
  void push_timed(std::function<void(DeviceStream&)> work);
  // Waits until all that was pushed is done. Throws what failed since the last time.
  void wait();
  bool idle();

  // For work of this stream only.
  DeviceNanoseconds clock() const { return clock_; }
  void advance_to(DeviceNanoseconds time) { clock_ = std::max(clock_, time); }

  static void set_delay(int microseconds);
  static void set_seed(std::uint64_t seed);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(DeviceStream&)>> queue_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  std::exception_ptr error_;
  std::uint64_t number_;
  std::uint64_t seeded_ = 0;
  std::mt19937 random_;
  DeviceNanoseconds clock_ = 0;
};

// All streams. Stream 0 is the default of its device.
DeviceStream& stream(c10::DeviceIndex device, c10::StreamId id);
inline DeviceStream& stream(const c10::Stream& which) {
  return stream(which.device_index(), which.id());
}
// A stream that is not the default one. There are a few of them, handed out in turn.
c10::StreamId next_stream(c10::DeviceIndex device);
// Waits for all streams of a device.
void wait_for_device(c10::DeviceIndex device);

// The device and the streams that this thread works with.
c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device);
c10::StreamId current_stream_id(c10::DeviceIndex device);
c10::StreamId exchange_stream(c10::DeviceIndex device, c10::StreamId id);
inline DeviceStream& current_stream(c10::DeviceIndex device) {
  return stream(device, current_stream_id(device));
}

class DeviceEvent {
 public:
  // Each call counts as a version of its own.
  static void record(const std::shared_ptr<DeviceEvent>& event, DeviceStream& on);
  // `waiting` goes on when the version that was recorded last has come.
  static void block(const std::shared_ptr<DeviceEvent>& event, DeviceStream& waiting);
  bool done();
  void wait();
  DeviceNanoseconds time();

 private:
  void wait_for(std::unique_lock<std::mutex>& lock, std::uint64_t version);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t recorded_ = 0;
  std::uint64_t completed_ = 0;
  DeviceNanoseconds time_ = 0;
};

}  // namespace remint::testing
