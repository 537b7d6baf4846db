#include "engine/engine.h"

namespace remint {

Engine::Engine(const EngineOptions& options, std::unique_ptr<Memory> memory, Device& device)
    : state_(options, std::move(memory), device),
      transitions_(state_),
      lifetimes_(state_, transitions_),
      allocation_(state_, lifetimes_),
      constants_(state_, transitions_, lifetimes_, allocation_),
      replay_(state_, transitions_, lifetimes_, allocation_),
      pinning_(state_, transitions_, lifetimes_, allocation_, replay_),
      driver_(state_, transitions_, lifetimes_, allocation_, replay_, pinning_) {}

void Engine::release(ValueId value) {
  state_.observers.tell(Observer::kRequests, [&](Observer& observer) {
    observer.released(value, state_.records.value(value).tag);
  });
  lifetimes_.release(value);
}

void Engine::materialize(ValueId value) {
  const std::uint64_t tag = state_.records.value(value).tag;
  state_.observers.tell(Observer::kRequests, [&](Observer& observer) { observer.materialized(value, tag); });
  pinning_.materialize(value);
}

void Engine::fix(ValueId value) {
  Storage& s = state_.storage_of(value);
  if (s.fixed) return;
  const std::uint64_t tag = state_.records.value(value).tag;
  state_.observers.tell(Observer::kRequests, [&](Observer& observer) { observer.fixed(value, tag); });
  transitions_.mark_fixed(state_.records.value(value).storage);
}

void Engine::follow(const GuidedStep& step, const StepNumbers& numbers) {
  state_.guide.begin(step, numbers);
  state_.deallocation = Deallocation::kLazy;
  // The guide knows who is evicted: nobody asks for costs.
  state_.policy->neighbourhood().pause();
}

void Engine::make_ahead(std::size_t op) {
  for (const auto& [tag, storage] : state_.guide.makes(op)) {
    if (!state_.records.storage(storage).in_use()) continue;
    ValueId value = kNone;
    for (ValueId each : state_.records.storage(storage).values) {
      if (state_.records.value(each).tag == tag) value = each;
    }
    if (value == kNone || state_.defined(value)) continue;
    try {
      pinning_.materialize(value);
    } catch (const OutOfMemory&) {
      allocation_.stop_following();
    }
    if (!state_.guide.active()) return;
  }
}

void Engine::mark(std::uint64_t tag) {
  const BlockEvent event{state_.clock, BlockChange::kMark, kNone, tag, 0, 0};
  state_.observers.tell(Observer::kBlocks, [&](Observer& observer) { observer.block(event); });
}

void Engine::check() const {
  check_books(state_);
}

}  // namespace remint
