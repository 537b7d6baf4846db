#include "testing/accelerator/streams.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "testing/accelerator/memory.h"

namespace remint::testing {
namespace {

constexpr c10::StreamId kPoolSize = 8;

std::atomic<int> max_delay{0};
std::atomic<std::uint64_t> delay_seed{1};
std::atomic<bool> forked{false};

std::mutex& counts_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}
Counts all_counts;

struct Streams {
  std::mutex mutex;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, DeviceStream*> all;
  std::map<c10::DeviceIndex, c10::StreamId> last;
};

// Never destroyed: their threads run until the process ends.
Streams& streams() {
  static auto* all = new Streams();
  return *all;
}

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::map<c10::DeviceIndex, c10::StreamId> streams_of_thread;

}  // namespace

void count(std::uint64_t Counts::* which) {
  const std::lock_guard<std::mutex> lock(counts_mutex());
  ++(all_counts.*which);
}

Counts counts() {
  const std::lock_guard<std::mutex> lock(counts_mutex());
  return all_counts;
}

DeviceStream::DeviceStream(c10::DeviceIndex device, c10::StreamId id)
    : number_(static_cast<std::uint64_t>(device) * 1000 + static_cast<std::uint64_t>(id)) {
  static std::once_flag watching;
  std::call_once(watching, [] { pthread_atfork(nullptr, nullptr, [] { forked = true; }); });
  std::thread([this] { work(); }).detach();
}

void DeviceStream::set_delay(int microseconds) {
  max_delay = microseconds;
}

void DeviceStream::set_seed(std::uint64_t seed) {
  delay_seed = seed;
}

void DeviceStream::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty(); });
    std::function<void(DeviceStream&)> next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (const int delay = max_delay) {
      if (std::exchange(seeded_, delay_seed.load()) != delay_seed) {
        random_.seed(static_cast<std::uint32_t>(delay_seed * 7919 + number_));
      }
      usleep(random_() % static_cast<unsigned>(delay));
    }
    std::exception_ptr failed;
    try {
      next(*this);
    } catch (...) {
      failed = std::current_exception();
    }
    next = nullptr;
    lock.lock();
    if (failed && !error_) error_ = failed;
    ++done_;
    changed_.notify_all();
  }
}

void DeviceStream::push(DeviceNanoseconds cost, std::function<void()> work) {
  push_timed([cost, work = std::move(work)](DeviceStream& self) {
    work();
    self.clock_ += cost;
  });
}

void DeviceStream::push_timed(std::function<void(DeviceStream&)> work) {
  TORCH_CHECK(
      !forked,
      "remint.testing.accelerator: a forked process has no streams. Use the device in the process that "
      "loaded it, or start processes with the method \"spawn\".");
  count(&Counts::work);
  // Kernels give the same bits only with the same number of threads.
  const int num_threads = at::get_num_threads();
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back([num_threads, work = std::move(work)](DeviceStream& self) {
    if (at::get_num_threads() != num_threads) at::set_num_threads(num_threads);
    work(self);
  });
  ++pushed_;
  changed_.notify_all();
}

void DeviceStream::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::uint64_t until = pushed_;
  changed_.wait(lock, [&] { return done_ >= until; });
  if (const std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

bool DeviceStream::idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ == pushed_;
}

DeviceStream& stream(c10::DeviceIndex device, c10::StreamId id) {
  const std::lock_guard<std::mutex> lock(streams().mutex);
  DeviceStream*& found = streams().all[{device, id}];
  if (found == nullptr) found = new DeviceStream(device, id);
  return *found;
}

c10::StreamId next_stream(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(streams().mutex);
  c10::StreamId& last = streams().last[device];
  last = last % kPoolSize + 1;
  return last;
}

void wait_for_device(c10::DeviceIndex device) {
  std::vector<DeviceStream*> all;
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    for (const auto& [key, found] : streams().all) {
      if (key.first == device) all.push_back(found);
    }
  }
  for (DeviceStream* found : all) found->wait();
}

c10::DeviceIndex current_device() {
  return device_of_thread;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < DeviceMemory::get().num_devices(),
              "remint.testing.accelerator: device ", static_cast<int>(device), " does not exist: there are ",
              DeviceMemory::get().num_devices());
  return std::exchange(device_of_thread, device);
}

c10::StreamId current_stream_id(c10::DeviceIndex device) {
  const auto found = streams_of_thread.find(device);
  return found == streams_of_thread.end() ? 0 : found->second;
}

c10::StreamId exchange_stream(c10::DeviceIndex device, c10::StreamId id) {
  return std::exchange(streams_of_thread[device], id);
}

void DeviceEvent::wait_for(std::unique_lock<std::mutex>& lock, std::uint64_t version) {
  changed_.wait(lock, [&] { return completed_ >= version; });
}

void DeviceEvent::record(const std::shared_ptr<DeviceEvent>& event, DeviceStream& on) {
  count(&Counts::events);
  std::uint64_t version = 0;
  {
    const std::lock_guard<std::mutex> lock(event->mutex_);
    version = ++event->recorded_;
  }
  on.push_timed([event, version](DeviceStream& self) {
    const std::lock_guard<std::mutex> lock(event->mutex_);
    event->completed_ = std::max(event->completed_, version);
    event->time_ = self.clock();
    event->changed_.notify_all();
  });
}

void DeviceEvent::block(const std::shared_ptr<DeviceEvent>& event, DeviceStream& waiting) {
  count(&Counts::stream_waits);
  std::uint64_t version = 0;
  {
    const std::lock_guard<std::mutex> lock(event->mutex_);
    version = event->recorded_;
  }
  waiting.push_timed([event, version](DeviceStream& self) {
    std::unique_lock<std::mutex> lock(event->mutex_);
    event->wait_for(lock, version);
    self.advance_to(event->time_);
  });
}

bool DeviceEvent::done() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return completed_ >= recorded_;
}

void DeviceEvent::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_for(lock, recorded_);
}

DeviceNanoseconds DeviceEvent::time() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return time_;
}

}  // namespace remint::testing
