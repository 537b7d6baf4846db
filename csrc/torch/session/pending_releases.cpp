#include "torch/session/pending_releases.h"

#include <Python.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace remint {
namespace {

// Gives up the GIL if this thread has it: whoever drops the last reference to a tensor may need it.
class WithoutGil {
 public:
  WithoutGil() : thread_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (thread_ != nullptr) PyEval_RestoreThread(thread_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const thread_;
};

}  // namespace

void PendingReleases::add_death(OwnedStorage* owned) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.deaths.push_back(owned);
  any_ = true;
}

void PendingReleases::add_free(void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.frees.push_back(address);
  any_ = true;
}

PendingReleases::Taken PendingReleases::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  any_ = false;
  return std::exchange(pending_, {});
}

void PendingReleases::note_collective(c10::StorageImpl* storage) {
  if (in_collectives_.size() >= next_sweep_) {
    sweep();
    next_sweep_ = std::max<std::size_t>(64, 2 * in_collectives_.size());
  }
  in_collectives_.emplace(storage, c10::weak_intrusive_ptr<c10::StorageImpl>(
                                       c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
}

void PendingReleases::sweep() {
  for (auto it = in_collectives_.begin(); it != in_collectives_.end();) {
    it = it->second.expired() ? in_collectives_.erase(it) : std::next(it);
  }
}

// No condition variable: if the process is forked while a thread waits for one, the child cannot destroy it.
bool PendingReleases::wait(const std::function<bool()>& ended) {
  using Clock = std::chrono::steady_clock;
  auto done = [&] { return any_ || ended(); };
  if (done()) return true;
  sweep();
  if (in_collectives_.empty()) return false;
  const WithoutGil without_gil;
  for (const auto end = Clock::now() + std::chrono::seconds(1); !done() && Clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (done()) return true;
  in_collectives_.clear();
  return false;
}

}  // namespace remint
