#include "torch/session/releases.h"

#include <algorithm>
#include <utility>

#include "torch/session/sleep.h"

namespace remint {

void Releases::free(void* address) {
  const Bytes offset = state_.region->offset(address);
  const RawBlock* raw = state_.owned->find_raw(offset);
  if (raw == nullptr) return;
  if (raw->running) {
    state_.engine->free(raw->block);
    if (!state_.replaying) state_.observer->gave_back(offset);
    if (state_.options.soft) hand_back(state_, offset, static_cast<std::size_t>(raw->nbytes));
  } else {
    if (state_.sleep != nullptr && state_.sleep->asleep() && state_.sleep->keep(offset, *raw)) return;
    if (state_.options.soft) hand_back(state_, offset, static_cast<std::size_t>(raw->nbytes));
    state_.engine->free_raw(raw->block, raw->nbytes);
    state_.observer->released(raw->number);
  }
  state_.owned->erase_raw(offset);
}

void Releases::died(OwnedStorage* owned) {
  state_.owned->release(owned);
  state_.forget_dropped();
}

void Releases::apply() {
  if (!in_flight_.empty()) end_collectives();
  if (pending_.any()) {
    const PendingReleases::Taken taken = pending_.take();
    for (OwnedStorage* owned : taken.deaths) state_.owned->release(owned);
    for (void* address : taken.frees) free(address);
  }
  state_.forget_dropped();
}

void Releases::end_collectives() {
  const Busy busy(state_.busy);
  for (std::size_t i = 0; i < in_flight_.size();) {
    if (!in_flight_[i].works.ended()) {
      ++i;
      continue;
    }
    const CollectiveInFlight ended = std::move(in_flight_[i]);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    for (ValueId value : ended.locks) state_.engine->unlock_for_read(value);
  }
}

bool Releases::apply_late() {
  // A replay may be in the middle of recipes that a release drops. Where a release can pin (banishing), it
  // has to wait until the kernel is done, as all pins.
  if (state_.replaying) return false;
  if (state_.in_kernel && state_.options.engine.deallocation != Deallocation::kEager) return false;
  // What spills is slow, but no error: it is not worth waiting for.
  auto ended = [&] {
    return std::any_of(in_flight_.begin(), in_flight_.end(),
                       [](const CollectiveInFlight& collective) { return collective.works.ended(); });
  };
  if (!pending_.any() && !ended()) {
    const Busy busy(state_.busy);
    const bool gave_up = state_.engine->give_up_sources();
    state_.forget_dropped();
    if (gave_up) return true;
  }
  if (!(state_.options.spill ? pending_.any() || ended() : pending_.wait(ended))) return false;
  const Busy busy(state_.busy);
  apply();
  return true;
}

void Releases::end() {
  in_flight_.clear();
  const PendingReleases::Taken taken = pending_.take();
  for (OwnedStorage* owned : taken.deaths) delete owned;
  for (void* address : taken.frees) Regions::free_survivor(address);
}

}  // namespace remint
