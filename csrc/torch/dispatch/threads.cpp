#include "torch/dispatch/threads.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <utility>
#include <vector>

#include "torch/older_torch.h"
#include "torch/session/session.h"

namespace remint {

namespace detail {
constinit thread_local ThisThread this_thread;
}
using detail::this_thread;
using detail::ThisThread;

// A budget that some thread entered.
struct Entered {
  Entered(Sessions sessions, std::shared_ptr<Entered> outer)
      : sessions(std::move(sessions)), outer(std::move(outer)) {}
  const Sessions sessions;
  const std::shared_ptr<Entered> outer;
  std::atomic<bool> left{false};
  std::atomic<bool> asleep{false};
};

namespace {

// What this thread itself entered, innermost last.
thread_local std::vector<std::shared_ptr<Entered>> entered;

// Budgets that sleep. While there are none, a thread without the key costs nothing.
std::atomic<int> num_asleep{0};

std::atomic<unsigned long> main_thread{0};

// PyTorch hands these objects on to the threads that work for this one. The object is a capsule around a
// shared pointer.
const std::string& slot() {
  static const auto* name = new std::string("remint.budget");
  return *name;
}

using Pointer = std::shared_ptr<Entered>;

void delete_pointer(PyObject* capsule) {
  delete static_cast<Pointer*>(PyCapsule_GetPointer(capsule, slot().c_str()));
}

void hand_on(const Pointer& innermost) {
  if (innermost == nullptr) {
    if (at::impl::ThreadLocalPythonObjects::contains(slot())) stop_handing_on(slot());
    return;
  }
  PyObject* capsule = PyCapsule_New(new Pointer(innermost), slot().c_str(), &delete_pointer);
  at::impl::ThreadLocalPythonObjects::set(slot(),
                                          std::make_shared<c10::SafePyObject>(capsule, getPyInterpreter()));
}

// What the thread that this one works for had entered.
Entered* handed_on() {
  if (!at::impl::ThreadLocalPythonObjects::contains(slot())) return nullptr;
  const std::shared_ptr<c10::SafePyObject>& object = at::impl::ThreadLocalPythonObjects::get(slot());
  if (object == nullptr) return nullptr;
  PyObject* capsule = object->ptr(getPyInterpreter());
  return static_cast<Pointer*>(PyCapsule_GetPointer(capsule, slot().c_str()))->get();
}

// In a forked child only the thread that forked goes on. A session that another thread was in the middle of
// stays as it was then, locked for ever: the child leaves all budgets.
void before_fork() {
  Regions::before_fork();
}
void after_fork_in_parent() {
  Regions::after_fork(false);
}
void after_fork_in_child() {
  if (!Regions::after_fork(true)) return;
  for (const auto& mine : entered) mine->left = true;
  c10::impl::tls_set_dispatch_key_included(kKey, false);
}

// The budget that this thread works for, if it sleeps.
const Entered* sleeping() {
  const Entered* one = this_thread.innermost == nullptr ? handed_on() : this_thread.innermost;
  return one != nullptr && !one->left.load(std::memory_order_relaxed) && one->asleep ? one : nullptr;
}

// The budget that this thread works for.
const Entered* current(const ThisThread& here) {
  if (here.outside) return nullptr;
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  if (!local.included_.has(kKey)) return num_asleep == 0 ? nullptr : sleeping();
  // A thread that took over the state of a running kernel (gloo's): what it allocates is its own, and it must
  // not wait for that kernel.
  if (here.kernel_depth == 0 && local.excluded_.has(kKey)) return nullptr;
  for (const Entered* one = here.innermost == nullptr ? handed_on() : here.innermost; one != nullptr;
       one = one->outer.get()) {
    if (!one->left.load(std::memory_order_relaxed)) return one;
  }
  return nullptr;
}

void set_asleep(Entered& entered, bool asleep) {
  if (entered.asleep.exchange(asleep) != asleep) num_asleep += asleep ? 1 : -1;
}

}  // namespace

c10::ArrayRef<std::shared_ptr<Session>> current_sessions() {
  const ThisThread& here = this_thread;
  if (here.working != nullptr) return *here.working;
  const Entered* one = current(here);
  return one == nullptr ? c10::ArrayRef<std::shared_ptr<Session>>() : one->sessions;
}

Session* current_session(c10::Device device) {
  const ThisThread& here = this_thread;
  if (here.working != nullptr && (*here.working)->is_of(device)) return here.working->get();
  const Entered* one = current(here);
  if (one == nullptr) return nullptr;
  for (const std::shared_ptr<Session>& session : one->sessions) {
    if (session->is_of(device)) return session.get();
  }
  return nullptr;
}

void enter_sessions(Sessions sessions) {
  entered.push_back(
      std::make_shared<Entered>(std::move(sessions), entered.empty() ? nullptr : entered.back()));
  this_thread.innermost = entered.back().get();
  hand_on(entered.back());
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

void leave_sessions(const Session* first) {
  for (std::size_t i = entered.size(); i-- > 0;) {
    if (entered[i]->sessions.front().get() != first) continue;
    entered[i]->left = true;
    set_asleep(*entered[i], false);
    entered.erase(entered.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  this_thread.innermost = entered.empty() ? nullptr : entered.back().get();
  hand_on(entered.empty() ? nullptr : entered.back());
  c10::impl::tls_set_dispatch_key_included(kKey, !entered.empty() && !this_thread.innermost->asleep);
}

void set_main_thread(unsigned long ident) {
  main_thread = ident;
}

bool is_main_thread_in(const Session* session) {
  const Entered* innermost = this_thread.innermost;
  return innermost != nullptr && innermost->sessions.front().get() == session &&
         PyThread_get_thread_ident() == main_thread;
}

void sleep_in_this_thread(bool asleep) {
  set_asleep(*this_thread.innermost, asleep);
  c10::impl::tls_set_dispatch_key_included(kKey, !asleep);
}

bool sleeps_in_this_thread() {
  return num_asleep != 0 && this_thread.working == nullptr && !this_thread.outside && sleeping() != nullptr;
}

void watch_forks() {
  pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
}

}  // namespace remint
