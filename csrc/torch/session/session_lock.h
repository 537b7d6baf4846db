// The lock of a session.
//
// A thread that has to wait for it gives up the GIL meanwhile: the kernel that runs under the lock may be
// Python code. The thread that is inside the budget takes the lock again and again, so it lets those who wait
// go first.
#pragma once

#include <atomic>
#include <mutex>

namespace remint {

class SessionMutex {
 public:
  void lock() {
    if (depth_of_this_thread() == 0 && waiting_.load(std::memory_order_relaxed) > 0) let_others_go_first();
    if (!mutex_.try_lock()) wait();
    ++depth_;
    owner_.store(this_thread(), std::memory_order_relaxed);
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    ++depth_;
    owner_.store(this_thread(), std::memory_order_relaxed);
    return true;
  }
  void unlock() {
    if (--depth_ == 0) owner_.store(nullptr, std::memory_order_relaxed);
    mutex_.unlock();
  }
  // Whether this thread has the lock.
  bool is_mine() const { return depth_of_this_thread() > 0; }
  // In a forked child: whoever has the lock is not there. Who waits for it gets an error.
  void abandon() { abandoned_ = true; }
  bool free_for_this_thread() {
    if (!try_lock()) return false;
    unlock();
    return true;
  }

 private:
  static const void* this_thread() {
    static thread_local char id;
    return &id;
  }
  int depth_of_this_thread() const {
    return owner_.load(std::memory_order_relaxed) == this_thread() ? depth_ : 0;
  }
  void wait();
  void let_others_go_first();

  std::recursive_mutex mutex_;
  std::atomic<const void*> owner_{nullptr};
  int depth_ = 0;  // guarded by mutex_
  std::atomic<int> waiting_{0};
  std::atomic<bool> abandoned_{false};
};

}  // namespace remint
