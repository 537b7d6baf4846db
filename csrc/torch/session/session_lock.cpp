#include "torch/session/session_lock.h"

#include <Python.h>

#include <thread>

namespace remint {

void SessionMutex::wait() {
  ++waiting_;
  if (Py_IsInitialized() && PyGILState_Check()) {
    // The GIL is taken back with the lock in hand: nobody waits for a session's lock with the GIL.
    PyThreadState* thread = PyEval_SaveThread();
    mutex_.lock();
    --waiting_;
    PyEval_RestoreThread(thread);
    return;
  }
  mutex_.lock();
  --waiting_;
}

void SessionMutex::let_others_go_first() {
  // A thread that waits needs some microseconds to wake up. It is not worth more: this is a courtesy, not a
  // rule.
  for (int i = 0; i < 64 && waiting_.load(std::memory_order_relaxed) > 0; ++i) std::this_thread::yield();
}

}  // namespace remint
