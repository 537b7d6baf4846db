// Where PyTorch comes in: CPU memory, operator calls, and which thread is inside which budget.
//
// Operator calls are seen at the dispatch key kKey, just above the dense kernels: below autograd and
// autocast, so backward ops and casts come one by one. The key is in the thread-local set of included keys
// exactly for the threads that are inside a budget; others never come here. Threads that autograd starts
// inherit that set.
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <new>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "torch/session/session.h"

namespace remint {
namespace {

thread_local std::shared_ptr<Session> mine;
thread_local Session* working = nullptr;

std::mutex& newest_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

// The sessions that are entered, by any thread, oldest first.
std::vector<std::weak_ptr<Session>>& entered() {
  static auto* sessions = new std::vector<std::weak_ptr<Session>>();
  return *sessions;
}

c10::Allocator* ordinary = nullptr;

class BudgetAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t nbytes) override {
    Session* session = current_session();
    return session == nullptr ? ordinary->allocate(nbytes) : session->allocate(nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &loose_deleter; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }
};

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
}

void boxed_view(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  op.redispatchBoxed(below(keys), stack);
}

void boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Call call{op, below(keys)};
  if (Session* session = current_session()) {
    session->run(call, stack);
    return;
  }
  c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  call(stack);
}

// Kernels of other layouts stand above kKey: what they are called with never comes there. This one takes the
// place of such a kernel.
class OfAnotherLayout final : public c10::OperatorKernel {
 public:
  explicit OfAnotherLayout(c10::SafeKernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const Call call{op, keys, &kernel_};
    if (Session* session = current_session()) {
      session->run(call, stack);
    } else {
      call(stack);
    }
  }

 private:
  c10::SafeKernelFunction kernel_;
};

constexpr c10::DispatchKey kOtherLayouts[] = {c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCsrCPU,
                                              c10::DispatchKey::NestedTensorCPU,
                                              c10::DispatchKey::QuantizedCPU, c10::DispatchKey::MkldnnCPU};

std::vector<c10::RegistrationHandleRAII>& handles() {
  static auto* all = new std::vector<c10::RegistrationHandleRAII>();
  return *all;
}

// An op with a kernel for all backends, maybe beside one for the CPU, would arrive in the pieces that this
// kernel calls, and so with other bits: for such an op the boxed function is registered by name. For the
// others the fallback does. Views touch no bytes: they have a quicker function. (PyTorch has "fallthrough"
// for that, but not for single ops: functorch calls it all the same.)
void interpose(const c10::OperatorHandle& op) {
  const bool implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  const bool composite =
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
      (implicit && op.hasKernelForDispatchKey(c10::DispatchKey::CPU));
  const Operator& facts = operator_facts(op);
  const bool view = facts.view && !facts.may_accumulate;
  if (!composite && (implicit || !view)) return;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::BackendSelect) || op.hasKernelForDispatchKey(kKey)) return;
  handles().push_back(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), kKey,
      view ? c10::KernelFunction::makeFromBoxedFunction<&boxed_view>()
           : c10::KernelFunction::makeFromBoxedFunction<&boxed>(),
      std::nullopt, nullptr, "remint"));
}

struct ByName {
  using Key = std::pair<c10::OperatorName, c10::DispatchKey>;
  bool operator()(const Key& a, const Key& b) const {
    return std::tie(a.first.name, a.first.overload_name, a.second) <
           std::tie(b.first.name, b.first.overload_name, b.second);
  }
};

class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

void interpose_other_layouts(const c10::OperatorHandle& op) {
  static auto* done = new std::set<std::pair<c10::OperatorName, c10::DispatchKey>, ByName>();
  for (c10::DispatchKey key : kOtherLayouts) {
    if (!op.hasKernelForDispatchKey(key) || !done->emplace(op.operator_name(), key).second) continue;
    handles().push_back(c10::Dispatcher::singleton().registerImpl(
        op.operator_name(), key,
        c10::KernelFunction::makeFromBoxedFunctor(
            std::make_unique<OfAnotherLayout>(op.getComputedKernelForDispatchKey(key))),
        std::nullopt, nullptr, "remint"));
  }
}

// Ops can be registered at any time. Their kernels come after their names, so it is the next budget that
// looks.
std::atomic<bool> any_new{true};

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override { any_new = true; }
  void onOperatorDeregistered(const c10::OperatorHandle& op) override { operator_gone(op); }
};

// In a forked child only the thread that forked goes on. A session that another thread was in the middle of
// stays as it was then, locked for ever: the child leaves it. Deleters do not wait for the lock.
void after_fork_in_child() {
  new (&newest_mutex()) std::mutex();
  for (const std::weak_ptr<Session>& one : entered()) {
    const std::shared_ptr<Session> session = one.lock();
    if (session == nullptr || session->at_rest()) continue;
    mine.reset();
    c10::impl::tls_set_dispatch_key_included(kKey, false);
  }
}

}  // namespace

void interpose_all() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (!any_new.exchange(false)) return;
  // Taking the place of a kernel is meant; PyTorch would warn.
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard silent(&silence);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (auto op = dispatcher.findSchema(name)) {
      interpose(*op);
      interpose_other_layouts(*op);
    }
  }
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    ordinary = c10::GetAllocator(c10::DeviceType::CPU);
    c10::SetAllocator(c10::DeviceType::CPU, new BudgetAllocator(), /*priority=*/1);
    handles().push_back(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
    handles().push_back(c10::Dispatcher::singleton().registerFallback(
        kKey, c10::KernelFunction::makeFromBoxedFunction<&boxed>(), "remint"));
    pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  });
  interpose_all();
}

c10::Allocator* ordinary_allocator() {
  return ordinary != nullptr ? ordinary : c10::GetAllocator(c10::DeviceType::CPU);
}

WorkingFor::WorkingFor(Session* session) : before_(working) {
  working = session;
}

WorkingFor::~WorkingFor() {
  working = before_;
}

Session* current_session() {
  if (working != nullptr) return working;
  if (!c10::impl::tls_is_dispatch_key_included(kKey)) return nullptr;
  if (mine != nullptr) return mine.get();
  // A thread of autograd's: it works for the budget that was entered last.
  std::lock_guard<std::mutex> lock(newest_mutex());
  while (!entered().empty()) {
    if (std::shared_ptr<Session> session = entered().back().lock()) return session.get();
    entered().pop_back();
  }
  return nullptr;
}

std::shared_ptr<Session> enter_session(std::shared_ptr<Session> session) {
  interpose_all();
  std::shared_ptr<Session> before = std::move(mine);
  {
    std::lock_guard<std::mutex> lock(newest_mutex());
    auto& all = entered();
    for (std::size_t i = all.size(); i-- > 0;) {
      if (all[i].expired() || all[i].lock() == before)
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (session != nullptr) all.push_back(session);
  }
  mine = std::move(session);
  c10::impl::tls_set_dispatch_key_included(kKey, mine != nullptr);
  return before;
}

}  // namespace remint
