// The engine: allocate → evict → rematerialize. This class is the whole of it to its callers: the simulator
// and the torch runtime. It owns the parts, which form a chain, lowest first; each file says what its part
// does.
//
//   EngineState   the shared state: records, candidates, memory, policy, running ops, statistics, observers
//   Transitions   bytes come and go: locks, residency, candidates
//   Lifetimes     references: releases, evictions, dead records
//   Allocation    memory for ops; free_up: evict and move until a request fits
//   Constants     bytes that no op made
//   Replay        makes values resident by running ops again
//   Pinning       pins, and the writes that need them; locks for reads
//   OpDriver      the steps around an op of the program
#pragma once

#include <memory>
#include <vector>

#include "base/errors.h"
#include "engine/allocation.h"
#include "engine/constants.h"
#include "engine/device.h"
#include "engine/lifetimes.h"
#include "engine/observer.h"
#include "engine/op_driver.h"
#include "engine/options.h"
#include "engine/pinning.h"
#include "engine/program_op.h"
#include "engine/replay.h"
#include "engine/state.h"
#include "engine/transitions.h"

namespace remint {

class Engine {
 public:
  // The policy and the settings follow from the options and the memory: an Arena, or Ideal, which has the
  // semantics of DTR's reference.
  Engine(const EngineOptions& options, std::unique_ptr<Memory> memory, Device& device);

  // ── Ops of the program ──

  // Runs an op. `outputs` gets its values; it is empty after an error, unless ProgramOp::failed described
  // some. An OutOfMemory before ProgramOp::ready leaves no lock, and the caller may call `run` again.
  void run(ProgramOp& op, OpDescription& description, std::vector<ValueId>& outputs) {
    driver_.run(op, description, outputs);
  }

  // ── Memory ──

  // Memory for the kernel that is running. Throws OutOfMemory.
  BlockId allocate(Bytes nbytes) { return allocation_.allocate(nbytes); }
  // Gives memory of the kernel that is running back: scratch.
  void free(BlockId block) { allocation_.free(block); }
  // Raw blocks have no record: memory that is asked for between ops, or that a kernel asked for and that
  // outlives it.
  BlockId allocate_raw(Bytes nbytes) { return allocation_.allocate_raw(nbytes); }
  void make_raw(BlockId block) { allocation_.make_raw(block); }
  void free_raw(BlockId block, Bytes nbytes) { allocation_.free_raw(block, nbytes); }

  // ── Constants: bytes that no op made. They are pinned. ──

  ValueId add_constant(Bytes nbytes, std::uint64_t tag) { return constants_.add(nbytes, tag); }
  // The same, in a block that is there already: a raw one, or of the op that is running. Memory elsewhere has
  // no block (kNone) and counts no bytes.
  ValueId adopt_constant(BlockId block, Bytes nbytes, std::uint64_t tag) {
    return constants_.adopt(block, nbytes, tag);
  }
  // Where the caller notes what is dropped, the record of a constant elsewhere that nothing needs is cached
  // (Records::Dropped::cached). It is used again, under another name, or dropped.
  void reuse_cached(ValueId value, std::uint64_t tag) { constants_.reuse_cached(value, tag); }
  void drop_cached(ValueId value) { constants_.drop_cached(value); }
  // The bytes of `value`, which are resident or offloaded, are elsewhere from now on: it becomes a constant
  // without a block.
  void move_out(ValueId value) { constants_.move_out(value); }

  // ── References of the program ──

  // The program gets one more reference to the storage of `value`, or drops one.
  void retain(ValueId value) { lifetimes_.retain(value); }
  void release(ValueId value);
  // The program has no reference to this constant any more, but recipes read its `nbytes`. Some ops later the
  // engine pins what the program still has and was computed from it, if that takes no more bytes.
  void retire(ValueId value, Bytes nbytes) { lifetimes_.retire(value, nbytes); }

  // ── Requests. All may be made while a kernel runs, by the thread that runs it. ──

  // Makes `value` resident now; it may be evicted again.
  void materialize(ValueId value);
  // Makes `value` resident from now on. While a kernel runs, the value is locked until the op ends and pinned
  // then; if the op writes it in place, the value after the write is pinned, and the value before keeps its
  // recipe.
  void pin(ValueId value) { pinning_.pin(value, true); }
  // Its address is known elsewhere: it is never moved.
  void fix(ValueId value);
  // Bytes that cannot be recomputed are about to be overwritten outside of all ops: rematerializes and pins
  // what was computed from them. (For ops the driver does it.)
  void before_write(ValueId value) { pinning_.before_write(value, true); }
  // The program is about to release bytes that cannot be recomputed, in the middle of a step, and recipes may
  // read them: pins what the program has and was computed from them, if that takes no more bytes. Otherwise
  // they stay for the recipes. If they are due back, they stay until memory is short, and recipes wait for
  // them.
  void before_free(ValueId value, DueBack due_back = DueBack::kNo) { pinning_.before_free(value, due_back); }
  // Whether `value` would be recomputed from bytes that were freed so.
  bool depends_on_away(ValueId value) { return lifetimes_.depends_on_away(value); }
  // Memory ran out: pins what was computed from bytes that only recipes still need, to free these. False:
  // there is nothing to free so.
  bool give_up_sources() { return pinning_.give_up_sources(); }
  // Makes `value` resident and locks it: it is neither evicted nor moved until it is unlocked, with the same
  // ValueId. Ops of the program may run in between; if one of them writes the value in place, the lock
  // follows the bytes.
  void lock_for_read(ValueId value) { pinning_.lock_for_read(value); }
  void unlock_for_read(ValueId value) { pinning_.unlock_for_read(value); }
  // Somebody who has a lock for reads writes the bytes all the same: the tier's copy of them is stale.
  void make_stale(ValueId value) { transitions_.make_stale(state_.records.value(value).storage); }
  // Drops the bytes of `value`, or of everything that can be recomputed; false if they cannot be dropped.
  bool evict_value(ValueId value) { return lifetimes_.evict_value(value); }
  void evict_all() { lifetimes_.evict_all(); }
  // Drops at least so many bytes, by the policy's choice; false if there is nothing to drop.
  bool evict_bytes(Bytes nbytes) { return allocation_.evict_bytes(nbytes); }

  // ── What there is ──

  bool defined(ValueId value) const { return state_.records.value(value).defined; }
  // Whether it is resident or offloaded: nothing has to run again to have it.
  bool is_kept(ValueId value) const { return state_.records.value(value).is_kept(); }
  // Copies in the tier are not to be relied on any more: those of resident bytes go, and no more are made.
  void abandon_copies() { transitions_.abandon_copies(); }
  // Null: there is none.
  Tier* tier() { return state_.tier.get(); }
  const Tier* tier() const { return state_.tier.get(); }
  bool pinned(ValueId value) const { return state_.storage_of(value).pinned; }
  const Records& records() const { return state_.records; }
  void note_dropped(Records::Dropped* dropped) { state_.records.note_dropped(dropped); }
  Memory& memory() { return *state_.memory; }
  const EngineSettings& settings() const { return state_.settings; }
  const Statistics& statistics() const { return state_.statistics; }
  std::uint64_t num_scores() const { return state_.policy->num_scores(); }
  const WindowComparison& window_comparison() const { return state_.policy->comparison(); }
  Nanoseconds now() const { return state_.clock; }
  Bytes pinned_bytes() const { return state_.pinned_bytes; }
  // The most that was in use by what could not be evicted while an op of the program ran: a smaller budget
  // cannot do.
  Bytes needed_bytes() const { return state_.needed_bytes; }
  // What is pinned from now on says nothing about that.
  void stop_noting_need() { state_.notes_need = false; }
  // More rematerialization than this, since the begin, raises Thrash.
  void limit_rematerialization(Nanoseconds most) { state_.max_rematerialized = most; }

  // ── A step that was seen before ──

  // From now on requests are those of `step`, and it says what is evicted for them and where they are placed.
  // `numbers` say which of the step's values the tags of values are; both are not copied. A request of
  // another size, or one that cannot be served as the guide says, ends it: what follows is up to the policy.
  void follow(const GuidedStep& step, const StepNumbers& numbers);
  void stop_following() { allocation_.stop_following(); }
  // The op of that number in the step comes next: makes resident what the guide says. Not while an op runs.
  void prepare(std::size_t op) {
    if (state_.guide.active()) make_ahead(op);
  }
  const Guide& guide() const { return state_.guide; }
  // Moves blocks together at the low end. Not while an op runs.
  void compact() { allocation_.compact(); }
  // Which future values have: for policies that ask. Not owned; null: unknown.
  void foresee(const Foresight* foresight) { state_.policy->foresee(foresight); }

  // Observers are not owned.
  void add_observer(Observer* observer) { state_.observers.add(observer); }
  void remove_observer(Observer* observer) { state_.observers.remove(observer); }
  // The program passes a point with a name: `tag` goes into the block log.
  void mark(std::uint64_t tag);

  // Throws std::logic_error if the books do not agree. For tests; not while an op runs.
  void check() const;

 private:
  EngineState state_;
  Transitions transitions_;
  Lifetimes lifetimes_;
  Allocation allocation_;
  Constants constants_;
  Replay replay_;
  Pinning pinning_;
  OpDriver driver_;

  void make_ahead(std::size_t op);
};

}  // namespace remint
