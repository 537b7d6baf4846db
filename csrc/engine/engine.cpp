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
  s.fixed = true;
}

void Engine::follow(const GuidedStep& step, std::uint64_t first_tag) {
  state_.guide.begin(step, first_tag);
  state_.deallocation = Deallocation::kLazy;
}

void Engine::mark(std::uint64_t tag) {
  const BlockEvent event{state_.clock, BlockChange::kMark, kNone, tag, 0, 0};
  state_.observers.tell(Observer::kBlocks, [&](Observer& observer) { observer.block(event); });
}

void Engine::check() const {
  check_books(state_);
}

}  // namespace remint
