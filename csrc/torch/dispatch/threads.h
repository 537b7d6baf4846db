// Which thread is inside which budget.
//
// A thread that enters a budget includes the interposed dispatch key in its thread-local state, and puts the
// sessions there, too: one for each device. PyTorch hands that state on to the threads that work for this
// one: autograd's, and those of futures. So each of them works for the right budget.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <utility>
#include <vector>

namespace remint {

class Session;
struct Entered;

// Operator calls are seen at this key.
constexpr c10::DispatchKey kKey = c10::DispatchKey::CustomRNGKeyId;

// One budget: a session for each device. They share a lock.
using Sessions = std::vector<std::shared_ptr<Session>>;

namespace detail {

// What is asked for with every op, of one thread. One object, because the first look at a thread-local
// variable of a module is a call in every function.
struct ThisThread {
  Entered* innermost = nullptr;  // the budget that it entered last
  const std::shared_ptr<Session>* working = nullptr;
  int kernel_depth = 0;
  bool collective = false;
  bool outside = false;
};
extern constinit thread_local ThisThread this_thread;

}  // namespace detail

// The sessions that this thread works for; none outside of all budgets. They live at least until the thread
// leaves them.
c10::ArrayRef<std::shared_ptr<Session>> current_sessions();
// The one among them whose memory is of `device`; null if there is none.
Session* current_session(c10::Device device);

void enter_sessions(Sessions sessions);
// The first of them says which.
void leave_sessions(const Session* first);

// Which thread is Python's main thread, as Python identifies it. Set once.
void set_main_thread(unsigned long ident);
// Whether this is Python's main thread, and the budget that it entered last is that of `session`.
bool is_main_thread_in(const Session* session);
// The budget that this thread entered last sleeps from now on, or is awake again: its operator calls are not
// seen, or are.
void sleep_in_this_thread(bool asleep);
// Whether the calls of this thread go unseen for that reason.
bool sleeps_in_this_thread();

// This thread allocates for a session that runs an op again, which need not be one it is inside of.
class WorkingFor {
 public:
  explicit WorkingFor(const std::shared_ptr<Session>& session) : before_(detail::this_thread.working) {
    detail::this_thread.working = &session;
  }
  ~WorkingFor() { detail::this_thread.working = before_; }
  WorkingFor(const WorkingFor&) = delete;
  WorkingFor& operator=(const WorkingFor&) = delete;

 private:
  const std::shared_ptr<Session>* before_;
};

// This thread is in a kernel that was called through the interposed key.
class InKernel {
 public:
  InKernel() { ++detail::this_thread.kernel_depth; }
  ~InKernel() { --detail::this_thread.kernel_depth; }
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
};

// This thread is in no budget meanwhile: what it allocates is ordinary memory.
class OutsideBudgets {
 public:
  OutsideBudgets() : before_(std::exchange(detail::this_thread.outside, true)) {}
  ~OutsideBudgets() { detail::this_thread.outside = before_; }
  OutsideBudgets(const OutsideBudgets&) = delete;
  OutsideBudgets& operator=(const OutsideBudgets&) = delete;

 private:
  const bool before_;
};

// Whether a kernel talked to other ranks. Such a kernel must not run again, whatever it is called.
inline void note_collective() {
  detail::this_thread.collective = true;
}
inline bool collective_noted() {
  return detail::this_thread.collective;
}
inline void clear_collective() {
  detail::this_thread.collective = false;
}

// Sees to it that a forked child does not wait for threads that it does not have.
void watch_forks();

}  // namespace remint
