// Which thread is inside which budget.
//
// A thread that enters a budget includes the interposed dispatch key in its thread-local state, and puts the
// session there, too. PyTorch hands that state on to the threads that work for this one: autograd's, and
// those of futures. So each of them works for the right budget.
#pragma once

#include <c10/core/DispatchKey.h>

#include <memory>

namespace remint {

class Session;

// Operator calls are seen at this key.
constexpr c10::DispatchKey kKey = c10::DispatchKey::CustomRNGKeyId;

// The session that this thread works for; null outside of all budgets. It lives at least until the thread
// leaves it.
Session* current_session();

void enter_session(std::shared_ptr<Session> session);
void leave_session(const std::shared_ptr<Session>& session);

// Which thread is Python's main thread, as Python identifies it. Set once.
void set_main_thread(unsigned long ident);
// Whether this is Python's main thread, and the budget that it entered last is that of `session`.
bool is_main_thread_in(const Session* session);
// The budget that this thread entered last sleeps from now on, or is awake again: its operator calls are not
// seen, or are.
void sleep_in_this_thread(bool asleep);
// Whether the calls of this thread go unseen for that reason.
bool sleeps_in_this_thread();

// This thread allocates for a session that runs an op again, which need not be the one it is inside of.
class WorkingFor {
 public:
  explicit WorkingFor(Session* session);
  ~WorkingFor();
  WorkingFor(const WorkingFor&) = delete;
  WorkingFor& operator=(const WorkingFor&) = delete;

 private:
  Session* before_;
};

// This thread is in a kernel that was called through the interposed key.
class InKernel {
 public:
  InKernel();
  ~InKernel();
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
};

// This thread is in no budget meanwhile: what it allocates is ordinary memory.
class OutsideBudgets {
 public:
  OutsideBudgets();
  ~OutsideBudgets();
  OutsideBudgets(const OutsideBudgets&) = delete;
  OutsideBudgets& operator=(const OutsideBudgets&) = delete;

 private:
  const bool before_;
};

// Whether a kernel talked to other ranks. Such a kernel must not run again, whatever it is called.
void note_collective();
bool collective_noted();
void clear_collective();

// Sees to it that a forked child does not wait for threads that it does not have.
void watch_forks();

}  // namespace remint
