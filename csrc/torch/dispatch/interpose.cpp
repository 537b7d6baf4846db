// Where PyTorch comes in: the device's memory, and operator calls.
//
// Operator calls are seen at the dispatch key kKey, just above the dense kernels: below autograd and
// autocast, so backward ops and casts come one by one. The key is in the thread-local state of threads that
// are inside a budget, and in the tensors of budgets. Other calls never come here.
#include "torch/dispatch/interpose.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "torch/dispatch/tags.h"
#include "torch/dispatch/threads.h"
#include "torch/dispatch/visit.h"
#include "torch/dispatch/works.h"
#include "torch/session/session.h"
#include "torch/session/session_of_call.h"

namespace remint {
namespace {

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
}

// Views touch no bytes. But what a budget reads through a view must be seen in all threads: the view takes
// its keys from what it is a view of.
void boxed_view(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::IValue& self = (*stack)[stack->size() - op.schema().arguments().size()];
  if (self.isTensor()) {
    if (c10::impl::tls_is_dispatch_key_included(kKey)) {
      tag(self.toTensor());
    } else if (sleeps_in_this_thread() && Regions::num_open_sessions() == 1) {
      untag(self.toTensor());
    }
  }
  c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  op.redispatchBoxed(below(keys), stack);
}

void run(const KernelCall& call, torch::jit::Stack* stack) {
  const Operator& facts = operator_facts(call.op);
  const InKernel in_kernel;
  c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  const c10::ArrayRef<std::shared_ptr<Session>> sessions = current_sessions();
  if (!sessions.empty()) {
    session_of_call(sessions, facts, *stack).run(call, facts, stack);
    return;
  }
  Visit visit;
  visit.use(facts, *stack);
  call(stack);
}

void boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  run({op, below(keys)}, stack);
}

// Takes the place of another kernel.
class Wrapper : public c10::OperatorKernel {
 public:
  explicit Wrapper(c10::SafeKernelFunction kernel) : kernel_(std::move(kernel)) {}

 protected:
  c10::SafeKernelFunction kernel_;
};

// Kernels of other layouts stand above kKey: what they are called with never comes there.
class OtherLayout final : public Wrapper {
 public:
  using Wrapper::Wrapper;
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    run({op, keys, &kernel_}, stack);
  }
};

// Copies of the integers among the arguments, in ordinary memory, where they stay while the op runs.
void copy_integers(const Operator& op, torch::jit::Stack* stack) {
  const OutsideBudgets outside;
  const c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  const std::size_t first = stack->size() - op.writes.size();
  for (std::size_t i = first; i < stack->size(); ++i) {
    c10::IValue& argument = (*stack)[i];
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor& tensor = argument.toTensor();
    if (!is_tagged(tensor) || !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) continue;
    Visit visit;
    visit.read(tensor);
    // ctc_loss would make copies of this type itself, which could be evicted.
    const bool converts = op.name == "aten::ctc_loss";
    at::Tensor copy =
        tensor.to(converts ? at::kLong : tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    argument = copy.contiguous();
  }
}

// Composite kernels are not seen at kKey, only the ops they are made of. These use memory by address in
// between.
class ByAddress final : public Wrapper {
 public:
  using Wrapper::Wrapper;
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const Operator& facts = operator_facts(op);
    Visit visit;
    if (Regions::num_open_sessions() == 0) {
      kernel_.callBoxed(op, keys, stack);
    } else if (facts.by_address == Operator::ByAddress::kIntegers) {
      copy_integers(facts, stack);
      kernel_.callBoxed(op, keys, stack);
    } else if (facts.by_address == Operator::ByAddress::kKeeps) {
      visit.use_by_address(facts, *stack);
      kernel_.callBoxed(op, keys, stack);
    } else {
      // The ops inside are not seen, so that nothing they make is evicted.
      visit.use_by_address(facts, *stack);
      const InKernel in_kernel;
      const c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
      kernel_.callBoxed(op, keys, stack);
    }
  }
};

// A collective may be hidden in another op, whose kernel then must not run again. Its Work says when it ends.
class Collective final : public Wrapper {
 public:
  using Wrapper::Wrapper;
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    note_collective();
    const std::size_t first = stack->size() - op.schema().arguments().size();
    kernel_.callBoxed(op, keys, stack);
    note_works(*stack, first);
  }
};

std::vector<c10::RegistrationHandleRAII>& handles() {
  static auto* all = new std::vector<c10::RegistrationHandleRAII>();
  return *all;
}

// An op with a kernel for all backends, maybe beside one of the device's own, would arrive in the pieces that
// this kernel calls, and so with other bits: for such an op the boxed function is registered by name. For the
// others the fallback does. Views touch no bytes: they have a quicker function. (PyTorch has "fallthrough"
// for that, but not for single ops: functorch calls it all the same.)
void interpose(const Backend& backend, const c10::OperatorHandle& op) {
  const bool implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  const bool composite =
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
      (implicit && op.hasKernelForDispatchKey(backend.dispatch_key()));
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

// Puts a wrapper in the place of the kernel that `op` has for `key`, once.
template <typename Kernel>
void wrap(const c10::OperatorHandle& op, c10::DispatchKey key) {
  static auto* done = new std::set<std::pair<c10::OperatorName, c10::DispatchKey>, ByName>();
  if (!done->emplace(op.operator_name(), key).second) return;
  handles().push_back(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), key,
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<Kernel>(op.getComputedKernelForDispatchKey(key))),
      std::nullopt, nullptr, "remint"));
}

void wrap_kernels(const Backend& backend, const c10::OperatorHandle& op) {
  const Operator& facts = operator_facts(op);
  for (c10::DispatchKey key : backend.other_layouts()) {
    if (op.hasKernelForDispatchKey(key)) wrap<OtherLayout>(op, key);
  }
  if (facts.by_address != Operator::ByAddress::kNothing) {
    for (c10::DispatchKey key : backend.composite_keys()) wrap<ByAddress>(op, key);
  }
  if (facts.collective && op.hasKernelForDispatchKey(backend.dispatch_key())) {
    wrap<Collective>(op, backend.dispatch_key());
  }
}

// Ops can be registered at any time. Their kernels come after their names, so it is the next budget that
// looks. How many came so far:
std::atomic<std::uint64_t> num_new{1};

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override { ++num_new; }
  void onOperatorDeregistered(const c10::OperatorHandle& op) override { operator_gone(op); }
};

class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

std::optional<c10::DataPtr> allocate_in_budget(c10::Device device, std::size_t nbytes) {
  Session* session = current_session(device);
  if (session == nullptr || session->options().soft) return std::nullopt;
  return session->allocate(nbytes);
}

bool free_memory_in_budget(c10::Device device) {
  Session* session = current_session(device);
  return session != nullptr && session->options().soft && session->free_memory();
}

bool record_stream_in_budget(void* address, const c10::Stream& stream) {
  if (std::shared_ptr<Session> session = Regions::session_of(address)) {
    session->record_stream(address, stream);
    return true;
  }
  return Regions::record_stream(address, stream);
}

void interpose_new_operators(const Backend& backend) {
  static auto* seen = new std::map<c10::DispatchKey, std::uint64_t>();
  std::uint64_t& last = (*seen)[backend.dispatch_key()];
  if (last == num_new) return;
  last = num_new;
  // Taking the place of a kernel is meant; PyTorch would warn.
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard silent(&silence);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (auto op = dispatcher.findSchema(name)) {
      interpose(backend, *op);
      wrap_kernels(backend, *op);
    }
  }
}

}  // namespace

void install(Backend& backend, bool soft) {
  static std::mutex mutex;
  static bool first = true;
  const std::lock_guard<std::mutex> lock(mutex);
  if (soft) {
    backend.install_soft_wall(&free_memory_in_budget);
  } else {
    backend.install_allocator(
        {&allocate_in_budget, &free_in_arena, &record_stream_in_budget, &Regions::contains});
  }
  if (std::exchange(first, false)) {
    handles().push_back(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
    handles().push_back(c10::Dispatcher::singleton().registerFallback(
        kKey, c10::KernelFunction::makeFromBoxedFunction<&boxed>(), "remint"));
    watch_forks();
  }
  interpose_new_operators(backend);
}

}  // namespace remint
