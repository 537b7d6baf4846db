#include "torch/session/session_lock.h"

#include <Python.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace remint {

void SessionMutex::wait() {
  if (abandoned_) {
    throw std::runtime_error(
        "remint: this process was forked while another thread used a budget, so tensors of that budget "
        "cannot be used "
        "here. Copy what the child process needs with tensor.clone() before the fork, or fork outside of the "
        "budget.");
  }
  ++waiting_;
  if (!Py_IsInitialized() || !PyGILState_Check()) {
    mutex_.lock();
    --waiting_;
    return;
  }
  // PyTorch takes locks of its own under the GIL, a generator's for example, so the GIL is not given up
  // lightly: another thread may wait for such a lock with the GIL in hand. Mostly the lock is free again
  // soon.
  constexpr std::chrono::milliseconds kPatience(50);
  for (const auto end = std::chrono::steady_clock::now() + kPatience;
       std::chrono::steady_clock::now() < end;) {
    if (mutex_.try_lock()) {
      --waiting_;
      return;
    }
    std::this_thread::yield();
  }
  // The kernel that runs under the lock may be Python code. The GIL is taken back with the lock in hand:
  // nobody waits for long for a session's lock with the GIL.
  PyThreadState* thread = PyEval_SaveThread();
  mutex_.lock();
  --waiting_;
  PyEval_RestoreThread(thread);
}

void SessionMutex::let_others_go_first() {
  // A thread that waits needs some microseconds to wake up. It is not worth more: this is a courtesy, not a
  // rule.
  for (int i = 0; i < 64 && waiting_.load(std::memory_order_relaxed) > 0; ++i) std::this_thread::yield();
}

}  // namespace remint
