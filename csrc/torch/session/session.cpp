#include "torch/session/session.h"

#include <algorithm>
#include <utility>

#include "simulator/trace_columns.h"
#include "torch/dispatch/arguments.h"
#include "torch/dispatch/autograd.h"
#include "torch/dispatch/interpose.h"
#include "torch/dispatch/tags.h"
#include "torch/dispatch/threads.h"
#include "torch/dispatch/visit.h"
#include "torch/observe/budget_error.h"
#include "torch/session/closing.h"
#include "torch/session/outside_constants.h"
#include "torch/session/owned_storages.h"
#include "torch/session/spill.h"
#include "torch/session/unrecorded_calls.h"

namespace remint {

// ── Opening ──

Session::Session(const SessionOptions& options, Backend& backend, const Session* partner)
    : mutex_(partner == nullptr ? std::make_shared<SessionMutex>() : partner->mutex_),
      state_(options, backend),
      device_(state_),
      call_(state_),
      releases_(state_),
      requests_(state_, call_, releases_) {
  auto arena = std::make_unique<Arena>(options.budget, backend.alignment());
  state_.arena = arena.get();
  state_.region = std::make_shared<Region>(backend, arena->budget(), options.soft);
  state_.ordinary_before = backend.ordinary_bytes();
  state_.engine = std::make_unique<Engine>(options.engine, std::move(arena), device_);
  state_.engine->note_dropped(&state_.dropped);
  if (options.engine.tier.bytes > 0) {
    state_.store = options.offload_folder.empty()
                       ? new_offload_memory(backend)
                       : new_offload_file(options.offload_folder, options.engine.tier.bytes);
    if (options.measure_bandwidth) state_.engine->tier()->set_bandwidth(state_.store->measure_bandwidth());
  }
  logs_.open(state_);
  // With a soft wall there are no addresses to plan, and scratch is not seen.
  const bool learns = options.learn && !options.record && !options.chaos && !options.spill && !options.soft;
  if (learns) {
    learner_ = std::make_unique<Learner>(state_);
    state_.learner = learner_.get();
    // With streams, or other devices, somebody has to see who uses what.
    if (options.sleep && !options.several && state_.order == nullptr)
      sleep_ = std::make_unique<Sleep>(state_);
    state_.sleep = sleep_.get();
  }
  if (options.max_slowdown > 0 && !options.chaos)
    thrash_guard_ = std::make_unique<ThrashGuard>(state_, options.max_slowdown);
  state_.thrash_guard = thrash_guard_.get();
}

std::shared_ptr<Session> Session::open(const SessionOptions& options, Backend& backend,
                                       const Session* partner) {
  TORCH_CHECK_VALUE(
      !options.soft || backend.has_soft_wall(), "remint: wall=\"soft\" is for CUDA. The allocator of ",
      backend.device(),
      " has no way to ask for memory when it runs out: leave wall= out, and the budget is an arena.");
  TORCH_CHECK_VALUE(!options.soft || options.engine.tier.bytes == 0,
                    "remint: offload= needs an arena: leave wall=\"soft\" out.");
  install(backend, options.soft);
  std::shared_ptr<Session> session(new Session(options, backend, partner));
  session->state_.session = session;
  session->state_.self = session.get();
  Regions::add(session->state_.region, session);
  return session;
}

// ── Operator calls ──

void Session::run(const KernelCall& call, const Operator& op, torch::jit::Stack* stack) {
  if (sleep_ != nullptr && sleep_->asleep()) {
    run_asleep(call, op, stack);
    return;
  }
  if (is_in_kernel_here()) {
    run_nested(*this, state_, call_, call, op, stack);
    return;
  }
  if (op.view) {
    const std::size_t first = stack->size() - op.writes.size();
    call(stack);
    if (!op.may_accumulate || !is_accumulating_gradient()) return;
    const Lock lock(*mutex_);
    if (!closed_) requests_.pin_results(*stack, first, PinReason::kGradient);
    return;
  }
  // Tensors of other budgets are dealt with before this one is locked: two budgets never wait for each other.
  Visit visit;
  if (Regions::num_open_sessions() > 1) visit.keep(op, *stack, this);
  if (op.collective) {
    run_collective(*this, call, op, stack);
    return;
  }
  if (state_.backend.is_capturing()) {
    run_captured(*this, call, op, stack);
    return;
  }
  // Before the lock: finding the line needs the GIL.
  const std::uint32_t source = logs_.current_line();
  Lock lock(*mutex_);
  if (state_.busy || closed_) {
    lock.unlock();
    call(stack);
    return;
  }
  state_.source = source;
  run_locked(call, op, stack);
}

// A call that is seen because of its tensors: those of before the sleep carry the key.
void Session::run_asleep(const KernelCall& call, const Operator& op, torch::jit::Stack* stack) {
  Visit visit;
  if (Regions::num_open_sessions() > 1) {
    visit.keep(op, *stack, this);
  } else {
    for (std::size_t i = stack->size() - op.writes.size(); i < stack->size(); ++i) {
      for_tensors((*stack)[i], [&](const at::Tensor& tensor, std::int32_t) {
        if (tensor.defined()) untag(tensor);
      });
    }
  }
  call(stack);
}

void Session::run_locked(const KernelCall& call, const Operator& op, torch::jit::Stack* stack) {
  const bool measured = state_.bookkeeping.measures_next();
  const Nanoseconds entered = measured ? state_.backend.now() : 0;
  const Nanoseconds elsewhere = state_.replayed + state_.engine->statistics().searching;
  releases_.apply();
  logs_.note_pass(state_);
  bool step_ended = false;
  if (learner_ != nullptr && learner_->finds_steps())
    requests_.work([&] { step_ended = learner_->find_boundary(); });
  if (thrash_guard_ != nullptr) {
    if (step_ended) thrash_guard_->begin_step();
    thrash_guard_->set_limit();
  }
  if (sleep_ != nullptr) {
    bool fell_asleep = false;
    requests_.work([&] { fell_asleep = sleep_->before_op(); });
    if (fell_asleep) {
      call(stack);
      return;
    }
  }
  const std::size_t first = stack->size() - op.writes.size();
  const Busy busy(state_.busy);
  state_.current = &op;
  struct Ended {
    SessionState& state;
    ~Ended() { state.current = nullptr; }
  } ended{state_};
  for (bool ran = false; !ran;) {
    try {
      call_.run(call, op, stack);
      ran = true;
    } catch (const OutOfMemory& error) {
      if (releases_.apply_late()) continue;
      if (!state_.options.spill || !spill_resident(state_, error.at_once)) raise_shortage(state_, error);
    } catch (const Thrash&) {
      thrash_guard_->raise();
    }
  }
  if (op.may_accumulate && is_accumulating_gradient())
    requests_.pin_results(*stack, first, PinReason::kGradient);
  state_.forget_dropped();
  if (state_.options.chaos) {
    state_.engine->evict_all();
    state_.forget_dropped();
  }
  if (state_.options.engine.check) state_.engine->check();
  if (!measured) return;
  const Nanoseconds kernels = call_.kernel_ended() - call_.kernel_started() + state_.replayed +
                              state_.engine->statistics().searching - elsewhere;
  state_.bookkeeping.add(state_.backend.now() - entered - kernels);
}

void Session::step() {
  const Lock lock(*mutex_);
  if (closed_ || state_.busy) return;
  if (thrash_guard_ != nullptr) thrash_guard_->begin_step();
  if (learner_ == nullptr) return;
  releases_.apply();
  learner_->note_peak();
  // A step of which a part was not seen is no step to learn.
  bool unseen = false;
  if (sleep_ != nullptr) requests_.work([&] { unseen = sleep_->step_ended() || sleep_->asleep(); });
  if (!unseen) requests_.work([&] { learner_->step_ended(); });
}

void Session::wake_if_possible() {
  const Lock lock(*mutex_);
  if (closed_) return;
  sleep_->wake_if_possible();
}

// ── Memory ──

c10::DataPtr Session::allocate(std::size_t nbytes) {
  // A number is no larger than the header of its tensor, which is not in the arena either; in it, it would
  // stand in the way of every window, and to recompute an evicted loss would take the whole forward.
  constexpr std::size_t kNumber = 64;
  const c10::Device device = state_.backend.device();
  if (nbytes == 0) return {nullptr, nullptr, &raw_deleter, device};
  const Lock lock(*mutex_);
  if (closed_ || (nbytes <= kNumber && (!state_.busy || !state_.options.chaos))) {
    return state_.backend.ordinary_allocator()->allocate(nbytes);
  }
  const auto size = static_cast<Bytes>(nbytes);
  const bool running = state_.busy;
  BlockId block = kNone;
  const bool asleep = sleep_ != nullptr && sleep_->asleep();
  if (asleep) {
    if (const std::optional<Bytes> offset = sleep_->take(size)) {
      void* address = state_.region->at(*offset);
      return {address, address, &raw_deleter, device};
    }
  } else if (sleep_ != nullptr && !state_.replaying) {
    sleep_->note_request(size);
  }
  if (!running) releases_.apply();
  while (block == kNone) {
    try {
      const Busy busy(state_.busy);
      block = running ? state_.engine->allocate(size) : state_.engine->allocate_raw(size);
    } catch (const OutOfMemory& error) {
      if (state_.replaying || (running && !state_.last_try)) throw;
      if (releases_.apply_late()) continue;
      if (asleep && sleep_->free_kept()) continue;
      if (state_.options.spill) return spill(state_, nbytes);
      raise_shortage(state_, error);
    }
  }
  const Bytes offset = state_.arena->block(block).address;
  state_.owned->add_raw(offset, {block, size, running, running ? 0 : state_.next_number++});
  if (!running) {
    state_.observer->constant(size, kRaw);
  } else if (!state_.replaying) {
    state_.observer->requested(offset, size);
  }
  if (asleep) sleep_->took();
  void* address = state_.region->at(offset);
  if (state_.order != nullptr) state_.order->before_reuse(address, nbytes);
  return {address, address, &raw_deleter, device};
}

// The allocator has its lock, so this thread waits for no other. What it needs is not known.
bool Session::free_memory() {
  const Lock lock(*mutex_, std::try_to_lock);
  if (!lock.owns_lock() || closed_ || state_.backend.is_capturing()) return false;
  // The engine can evict between ops, and while a kernel runs.
  if (state_.busy && !state_.in_kernel && !state_.replaying) return false;
  const Bytes taken = state_.backend.ordinary_bytes() - state_.ordinary_before;
  const Bytes excess = std::max(taken - state_.options.budget, state_.backend.shortage());
  if (excess <= 0) return false;
  const Busy busy(state_.busy);
  return state_.engine->evict_bytes(excess);
}

void Session::record_stream(void* address, const c10::Stream& stream) {
  const Lock lock(*mutex_);
  if (closed_ || state_.order == nullptr) {
    state_.region->used_by(stream);
    return;
  }
  const Bytes offset = state_.region->offset(address);
  const RawBlock* raw = state_.owned->find_raw(offset);
  Bytes nbytes = raw == nullptr ? 0 : raw->nbytes;
  for (const OwnedStorage* owned : state_.owned->owners()) {
    if (nbytes > 0) break;
    if (owned == nullptr) continue;
    const Storage& storage = state_.storage_of(owned->value);
    if (storage.block != kNone && state_.arena->block(storage.block).address == offset)
      nbytes = storage.nbytes;
  }
  state_.order->record_stream(address, static_cast<std::size_t>(nbytes), stream);
}

void Session::free(void* address) {
  Lock lock(*mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    releases_.pending().add_free(address);
    return;
  }
  if (closed_) {
    lock.unlock();
    Regions::free_survivor(address);
    return;
  }
  releases_.free(address);
}

void Session::died(OwnedStorage* owned) {
  Lock lock(*mutex_, std::try_to_lock);
  if (!lock.owns_lock() || state_.busy) {
    releases_.pending().add_death(owned);
    return;
  }
  if (closed_) {
    delete owned;
    return;
  }
  releases_.died(owned);
}

// ── Requests ──

bool Session::materialize(const c10::StorageImpl* storage) {
  const Lock lock(*mutex_);
  return !closed_ && requests_.materialize(storage);
}

bool Session::pin(c10::StorageImpl* storage, PinReason reason) {
  const Lock lock(*mutex_);
  return !closed_ && requests_.pin(storage, reason);
}

bool Session::before_write(const c10::StorageImpl* storage, PinReason reason) {
  const Lock lock(*mutex_);
  return !closed_ && requests_.before_write(storage, reason);
}

void Session::before_free(const c10::StorageImpl* storage) {
  const Lock lock(*mutex_);
  if (!closed_) requests_.before_free(storage);
}

std::optional<bool> Session::is_resident(const c10::StorageImpl* storage) {
  const Lock lock(*mutex_);
  return closed_ ? std::nullopt : requests_.is_resident(storage);
}

std::optional<bool> Session::evict(const c10::StorageImpl* storage) {
  const Lock lock(*mutex_);
  return closed_ ? std::nullopt : requests_.evict(storage);
}

ValueId Session::lock_for_read(const c10::StorageImpl* storage) {
  const Lock lock(*mutex_);
  return closed_ ? kNone : requests_.lock_for_read(storage);
}

void Session::unlock_for_read(ValueId value) {
  const Lock lock(*mutex_);
  if (!closed_) requests_.unlock_for_read(value);
}

void Session::keep_for(CollectiveInFlight& collective, const torch::jit::Stack& stack, std::size_t first) {
  const Lock lock(*mutex_);
  if (!closed_) requests_.keep_for(collective, stack, first);
}

void Session::started(CollectiveInFlight collective, Nanoseconds took) {
  const Lock lock(*mutex_);
  if (!closed_) requests_.started(std::move(collective), took);
}

void Session::note_wait(Nanoseconds took) {
  const Lock lock(*mutex_);
  state_.collectives += took;
}

// ── Closing ──

void Session::close() {
  const Lock lock(*mutex_);
  if (closed_) return;
  releases_.apply();
  if (learner_ != nullptr) learner_->end();
  if (sleep_ != nullptr) sleep_->end();
  if (thrash_guard_ != nullptr) thrash_guard_->end();
  // What is pinned from here on is no decision of the program's.
  logs_.end_recording(state_);
  std::exception_ptr failure;
  {
    const Busy busy(state_.busy);
    for (bool done = false; !done && !failure;) {
      try {
        materialize_all(state_);
        done = true;
      } catch (const OutOfMemory&) {
        if (!releases_.apply_late()) failure = std::current_exception();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    state_.forget_dropped();
    final_ = figures_of(state_);
    final_.bookkeeping = state_.bookkeeping.total();
    if (state_.order != nullptr) {
      for (const c10::Stream& stream : state_.order->streams()) state_.region->used_by(stream);
    }
    end_ownership(state_);
    // What was recomputed or copied here must be there for all streams, as the program expects.
    if (state_.order != nullptr) state_.order->publish();
  }
  closed_ = true;
  state_.engine.reset();
  state_.arena = nullptr;
  state_.recipes.clear();
  state_.constants->clear();
  state_.store.reset();
  releases_.end();
  if (failure) std::rethrow_exception(failure);
}

bool Session::after_fork(bool in_child) {
  releases_.pending().after_fork();
  if (!in_child) return false;
  if (mutex_->free_for_this_thread()) {
    if (!closed_ && state_.store != nullptr && !state_.store->survives_fork())
      state_.engine->abandon_copies();
    return false;
  }
  mutex_->abandon();
  return true;
}

bool Session::contains(const void* address) const {
  return state_.region->contains(address);
}

// ── What it says about itself ──

Figures Session::figures() {
  const Lock lock(*mutex_);
  if (closed_) return final_;
  Figures figures = figures_of(state_);
  figures.bookkeeping = state_.bookkeeping.total();
  return figures;
}

Bytes Session::budget_for(double max_slowdown) {
  const Lock lock(*mutex_);
  return closed_ || learner_ == nullptr ? 0 : learner_->budget_for(max_slowdown);
}

std::vector<std::pair<std::string, Bytes>> Session::pinned_by() {
  const Lock lock(*mutex_);
  return closed_ ? std::vector<std::pair<std::string, Bytes>>() : remint::pinned_by(state_);
}

void Session::check() {
  const Lock lock(*mutex_);
  if (closed_ || state_.busy) return;
  releases_.apply();
  state_.engine->check();
}

}  // namespace remint
