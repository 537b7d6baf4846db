#include "torch/session/sleep.h"

#include <Python.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "torch/dispatch/autograd.h"
#include "torch/dispatch/threads.h"
#include "torch/session/learner.h"
#include "torch/session/owned_storages.h"
#include "torch/session/session.h"

namespace remint {
namespace {

// Called by Python in the main thread, between two instructions.
int on_main_thread(void* argument) {
  const std::unique_ptr<std::weak_ptr<Session>> pointer(static_cast<std::weak_ptr<Session>*>(argument));
  if (const std::shared_ptr<Session> session = pointer->lock()) session->wake_if_possible();
  return 0;
}

}  // namespace

// ── Falling asleep ──

bool Sleep::step_ended() {
  if (!has_steps_) {
    // What was seen so far was no step.
    has_steps_ = true;
    num_quiet_ = 0;
    requests_.clear();
  }
  if (!asleep()) return end_window();
  ++figures_.num_steps;
  if (wanted_) {
    wake_if_possible();
    return !asleep();
  }
  if (guarded_ && std::find(known_.begin(), known_.end(), requests_) == known_.end() &&
      known_.size() < kMostKnown) {
    known_.push_back(requests_);
  }
  expect_next_step();
  return false;
}

bool Sleep::end_window() {
  const Statistics& now = state_.engine->statistics();
  Memory& memory = state_.engine->memory();
  const bool quiet = now.num_evicted() == evictions_ && now.num_rematerializations == rematerializations_ &&
                     memory.recent_peak() <= memory.budget() / 2;
  evictions_ = now.num_evicted();
  rematerializations_ = now.num_rematerializations;
  if (quiet) {
    // In the middle of a forward pass memory is plentiful, too, but it grows.
    if (num_quiet_ == 0 || memory.recent_peak() > quiet_peak_ + quiet_peak_ / 64) {
      num_quiet_ = 0;
      quiet_peak_ = memory.recent_peak();
    }
    ++num_quiet_;
    if (has_steps_ && known_.size() < kMostKnown &&
        std::find(known_.begin(), known_.end(), requests_) == known_.end()) {
      known_.push_back(requests_);
    }
  } else {
    num_quiet_ = 0;
    known_.clear();
  }
  memory.reset_recent_peak();
  num_ops_ = 0;
  requests_.clear();
  return num_quiet_ >= num_needed_ && can_sleep() && fall_asleep();
}

bool Sleep::can_sleep() const {
  const SessionOptions& options = state_.options;
  if (options.timeline || options.events || options.blocks || options.source_lines) return false;
  if (state_.given_costs.next() != nullptr) return false;
  if (Regions::num_open_sessions() > 1 || is_in_backward() || !is_main_thread_in(state_.self)) return false;
  // Without steps there is no sequence of requests to compare with.
  if (!has_steps_ && quiet_peak_ > state_.arena->budget() / 4) return false;
  for (const OwnedStorage* owned : state_.owned->owners()) {
    if (owned != nullptr && !state_.engine->defined(owned->value)) return false;
  }
  return true;
}

bool Sleep::fall_asleep() {
  // Writes are not seen from now on, so there must be no recipes. Whoever got an address while nobody saw it
  // can rely on it.
  const std::vector<OwnedStorage*> owners = state_.owned->owners();
  for (OwnedStorage* owned : owners) {
    if (owned != nullptr) state_.pin(owned, PinReason::kAsleep);
  }
  state_.forget_dropped();
  if (state_.engine->records().num_ops() > 0) return false;
  if (state_.learner != nullptr) state_.learner->interrupted();
  // What sleeps is pinned without need: it says nothing about how small a budget can be.
  state_.engine->stop_noting_need();
  kept_.resize(static_cast<std::size_t>(kLargestKept / state_.backend.alignment()) + 1);
  const Bytes budget = state_.arena->budget();
  limit_ = std::min(std::max(quiet_peak_ + quiet_peak_ / 4, budget / 16), budget / 2);
  guarded_ = has_steps_ && quiet_peak_ > state_.arena->budget() / 4;
  wanted_ = false;
  expect_next_step();
  asleep_ = true;
  sleep_in_this_thread(true);
  return true;
}

void Sleep::end() {
  if (!asleep()) return;
  free_kept();
  asleep_ = false;
}

// ── Requests ──

std::size_t Sleep::size_class(Bytes nbytes) const {
  return static_cast<std::size_t>(state_.arena->footprint(nbytes) / state_.backend.alignment());
}

std::optional<Bytes> Sleep::take(Bytes nbytes) {
  if (guarded_) check_request(nbytes);
  if (wanted_ && !queued_) want_to_wake(nullptr);
  if (nbytes > kLargestKept) return std::nullopt;
  std::vector<Bytes>& offsets = kept_[size_class(nbytes)];
  if (offsets.empty()) return std::nullopt;
  const Bytes offset = offsets.back();
  offsets.pop_back();
  kept_bytes_ -= state_.arena->footprint(nbytes);
  // Sizes of one class share blocks. Replays read as many bytes as the record says.
  state_.owned->find_raw(offset)->nbytes = nbytes;
  return offset;
}

void Sleep::took() {
  if (state_.arena->used() - kept_bytes_ > limit_ && !wanted_) want_to_wake("more memory than before");
}

bool Sleep::keep(Bytes offset, const RawBlock& raw) {
  const Bytes footprint = state_.arena->footprint(raw.nbytes);
  const Bytes most = std::min<Bytes>(state_.arena->budget() / 64, 1 << 20);
  if (raw.nbytes > kLargestKept || kept_bytes_ + footprint > most) return false;
  kept_[size_class(raw.nbytes)].push_back(offset);
  kept_bytes_ += footprint;
  return true;
}

bool Sleep::free_kept() {
  for (std::vector<Bytes>& offsets : kept_) {
    for (Bytes offset : offsets) {
      const RawBlock* raw = state_.owned->find_raw(offset);
      state_.engine->free_raw(raw->block, raw->nbytes);
      state_.owned->erase_raw(offset);
    }
    offsets.clear();
  }
  return std::exchange(kept_bytes_, 0) > 0;
}

void Sleep::expect_next_step() {
  requests_.clear();
  possible_.resize(known_.size());
  for (std::size_t i = 0; i < known_.size(); ++i) possible_[i] = i;
}

void Sleep::check_request(Bytes nbytes) {
  const std::size_t place = requests_.size();
  requests_.push_back(nbytes);
  possible_.erase(std::remove_if(possible_.begin(), possible_.end(),
                                 [&](std::size_t id) {
                                   return place >= known_[id].size() || known_[id][place] != nbytes;
                                 }),
                  possible_.end());
  if (possible_.empty() && !wanted_) want_to_wake("other requests for memory");
}

// ── Waking up ──

void Sleep::want_to_wake(const char* why) {
  wanted_ = true;
  if (why != nullptr) figures_.last_wake = why;
  auto pointer = std::make_unique<std::weak_ptr<Session>>(state_.session);
  // If Python's queue is full, the next request tries again.
  queued_ = Py_AddPendingCall(&on_main_thread, pointer.get()) == 0;
  if (queued_) pointer.release();
}

void Sleep::wake_if_possible() {
  queued_ = false;
  if (!asleep() || !wanted_) return;
  if (state_.busy || is_in_backward() || is_below_autograd() || !is_main_thread_in(state_.self)) return;
  wake();
}

void Sleep::wake() {
  free_kept();
  // Whatever was made meanwhile has no recipe, and its address may be known.
  state_.owned->fix_raw();
  asleep_ = false;
  sleep_in_this_thread(false);
  ++figures_.num_wakes;
  // A program that keeps waking up is worth less and less sleep.
  num_needed_ = std::min<std::uint32_t>(2 * num_needed_, 1024);
  num_quiet_ = 0;
  known_.clear();
  requests_.clear();
  num_ops_ = 0;
  evictions_ = state_.engine->statistics().num_evicted();
  rematerializations_ = state_.engine->statistics().num_rematerializations;
  state_.engine->memory().reset_recent_peak();
  if (state_.learner != nullptr) state_.learner->interrupted();
}

}  // namespace remint
