// The lock of a session.
//
// A thread that has to wait for it gives up the GIL meanwhile: the kernel that runs under the lock may be
// Python code. The thread that is inside the budget takes the lock again and again, so it lets those who wait
// go first.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace remint {

// Recursive. A thread that has it pays a comparison to take it again: an op and its requests for memory do.
class SessionMutex {
 public:
  void lock() {
    if (take_again()) return;
    if (waiting_.load(std::memory_order_relaxed) > 0) let_others_go_first();
    if (!mutex_.try_lock()) wait();
    take();
  }
  bool try_lock() {
    if (take_again()) return true;
    if (!mutex_.try_lock()) return false;
    take();
    return true;
  }
  void unlock() {
    if (--depth_ > 0) return;
    owner_.store(kNobody, std::memory_order_relaxed);
    mutex_.unlock();
  }
  // Whether this thread has the lock.
  bool is_mine() const { return owner_.load(std::memory_order_relaxed) == pthread_self(); }
  // In a forked child: whoever has the lock is not there. Who waits for it gets an error.
  void abandon() { abandoned_ = true; }
  bool free_for_this_thread() {
    if (!try_lock()) return false;
    unlock();
    return true;
  }

 private:
  static constexpr pthread_t kNobody = 0;

  bool take_again() {
    if (!is_mine()) return false;
    ++depth_;
    return true;
  }
  void take() {
    owner_.store(pthread_self(), std::memory_order_relaxed);
    depth_ = 1;
  }
  void wait();
  void let_others_go_first();

  std::mutex mutex_;
  std::atomic<pthread_t> owner_{kNobody};
  int depth_ = 0;  // guarded by mutex_
  std::atomic<int> waiting_{0};
  std::atomic<bool> abandoned_{false};
};

}  // namespace remint
