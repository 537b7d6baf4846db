// The engine: allocate → evict → rematerialize.
//
// It serves two kinds of callers with one set of rules. The simulator hands it whole ops (`run`), on a device
// that only says what memory an op asks for. A runtime brackets real kernels: `acquire` makes the inputs
// resident and locks them, the kernel calls `allocate` for what it needs, `commit` records what it made (or
// `abandon` if it failed).
//
// Two sets of semantics:
//   reference  DTR's simulator, for ideal memory: all outputs of an op are reserved at once, outputs are
//   known before
//              the op runs, and dead records stay, because their cost still counts in the scores of their
//              neighbours.
//   arena      what a real run does: outputs and scratch are asked for one by one while the op runs, dead
//   records are
//              dropped, and an op that finds no room is tried again after what is resident was moved
//              together, and after the ops that wait for it gave up their locks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "engine/candidates.h"
#include "engine/records.h"
#include "memory/compaction.h"
#include "memory/memory.h"
#include "policies/policy.h"

namespace remint {

class Engine;

// What "run this op again" means.
class Device {
 public:
  virtual ~Device() = default;
  // Runs `op`, whose inputs are resident and locked, asking `engine.allocate` for every byte. Puts the block
  // of each output into `blocks`; an output that takes over an input's bytes has none, unless `blocks`
  // already holds the one to work in (with a copy of the input).
  virtual void run(Engine& engine, const Op& op, std::vector<BlockId>& blocks) = 0;
  virtual void evicted(StorageId) {}
  virtual void materialized(StorageId) {}
  // Bytes changed their place in the arena; no op is running.
  virtual void moved(StorageId, Bytes /*from*/, Bytes /*to*/) {}
};

struct Output {
  Bytes nbytes = 0;
  std::uint64_t tag = 0;
  std::uint32_t alias = kNone;       // the input whose storage it is a view of
  std::uint32_t takes_over = kNone;  // the input whose bytes it takes over: an in-place op
  ValueId replaces = kNone;          // the value it overwrites whole, without reading it
  bool once = false;                 // it cannot be made again, whatever made it
};

struct OpDescription {
  Nanoseconds cost = 0;
  std::uint64_t tag = 0;
  std::vector<ValueId> inputs;
  std::vector<Output> outputs;
  // For `Engine::run`: what has to be there while it runs (the inputs, and what it only writes), what of that
  // it writes, and whether it writes anything at all, known to the engine or not.
  std::vector<ValueId> acquired;
  std::vector<ValueId> written;
  bool writes = false;
  void clear() {
    inputs.clear();
    outputs.clear();
    acquired.clear();
    written.clear();
    writes = false;
  }
};

struct EngineOptions {
  Deallocation deallocation = Deallocation::kEager;
  bool reference = false;
  bool partition = false;  // cheap and expensive bytes at two ends of the arena
  bool moving = false;  // an op that finds no room is tried again after what is resident was moved together
  // What would take a chain of more ops than this to make again is pinned: records do not grow with a long
  // loop.
  std::uint32_t max_depth = std::numeric_limits<std::uint32_t>::max();
  // Rematerialization beyond this raises Thrash.
  Nanoseconds max_rematerialized = std::numeric_limits<Nanoseconds>::max();
};

struct Statistics {
  std::uint64_t num_ops = 0;
  std::uint64_t num_evictions = 0;
  std::uint64_t num_rematerializations = 0;
  std::uint64_t num_searches = 0;
  Nanoseconds computed = 0;  // by ops of the program, once each
  Nanoseconds rematerialized = 0;
  Nanoseconds searching = 0;  // real time
  Bytes moved_bytes = 0;
  double unusable_bytes = 0;  // free bytes that could not serve the request, summed over searches
};

// C: an op of the program ran, R: a rematerialization, E: bytes were dropped. `tag` is that of the op's first
// output, of the value that was asked for, of the storage's root value.
struct Event {
  char kind;
  std::uint64_t tag;
};

struct Sample {
  Nanoseconds time;
  Bytes used;
};

// What became of a block, for a picture of the arena.
enum class BlockChange : char {
  kTaken = 'A',    // by the op that is running: scratch, or an output to be
  kGiven = 'F',    // back by the op that took it
  kMade = 'C',     // it holds a storage from now on
  kPinned = 'P',   // its storage is never evicted from now on
  kEvicted = 'E',  // its storage was evicted to make room
  kLetGo = 'L',    // the program let go of its storage, evicted or not, which recipes still need
  kDropped = 'D',  // its storage is gone for good; also one that has no block any more (0 bytes)
  kGhost = 'G',    // an op in place took the bytes over
  kMoved = 'M',    // to this address
  kMark = 'K',     // none: the program passed a point with a name
};

// `tag` is that of the storage's root value; slots of dropped storages are used again.
struct BlockEvent {
  Nanoseconds time;
  BlockChange change;
  StorageId storage;  // kNone where an op took or gave back bytes
  std::uint64_t tag;
  Bytes address;
  Bytes nbytes;
};

class Engine {
 public:
  Engine(const EngineOptions& options, std::unique_ptr<Memory> memory, const std::string& policy,
         const PolicyOptions& policy_options, Device& device);

  // Bytes that the program owns and that cannot be made again. They are pinned.
  ValueId add_constant(Bytes nbytes, std::uint64_t tag);
  // The same, in a block that is there already: one that was kept, or of the op that is running. Memory
  // elsewhere has no block (kNone) and counts no bytes.
  ValueId adopt_constant(BlockId block, Bytes nbytes, std::uint64_t tag);

  // A constant elsewhere that nothing needs rests where a caller notes what is dropped. It is used again,
  // under another name, or dropped.
  void use_again(ValueId value, std::uint64_t tag);
  void drop_resting(ValueId value);

  // Runs an op of the program; `outputs` gets its values.
  void run(const OpDescription& description, std::vector<ValueId>& outputs);

  // Makes `inputs` resident and locks them until `commit` or `abandon`. `cost` and `nbytes`, what the op is
  // thought to take and make, decide where its bytes are placed.
  void acquire(const std::vector<ValueId>& inputs, Nanoseconds cost, Bytes nbytes);
  // Memory for the op that is running. Throws OutOfMemory.
  BlockId allocate(Bytes nbytes);
  // For an op that ran out of memory and can be tried again: evicts and moves until `nbytes` should fit.
  // False if there is nothing left to do. Only while no kernel is running.
  bool make_room(Bytes nbytes);
  // Whether an op that is about to run should be tried again after `make_room` if it runs out of memory: what
  // has written something cannot be, and preparing for it takes time.
  bool may_try_again(bool writes) const { return !writes && 4 * memory_->used() > memory_->budget(); }
  // Gives memory of the op that is running back: scratch.
  void free(BlockId block);
  // Memory that belongs to no op: asked for between ops, or of an op that is running and outlives it.
  BlockId allocate_kept(Bytes nbytes);
  void keep(BlockId block);
  void free_kept(BlockId block, Bytes nbytes);
  void commit(const OpDescription& description, const std::vector<BlockId>& blocks,
              std::vector<ValueId>& outputs);
  void abandon();

  // To be called before `acquire` for every value that the op writes in place. If its bytes cannot be made
  // again, what the program holds and was computed from them is made and pinned, so that no recipe ever sees
  // what is written.
  void before_write(ValueId value);

  // The program holds this constant no more, but recipes read its `nbytes`. Before the next op, what the
  // program holds and was computed from it is pinned instead, if that takes no more bytes.
  void retire(ValueId value, Bytes nbytes) { retire_storage(records_.value(value).storage, nbytes); }

  // The program gets one more reference to the storage of `value`, or drops one.
  void retain(ValueId value) { ++storage_of(value).references; }
  void release(ValueId value);

  // Makes `value` resident, now or from now on.
  void materialize(ValueId value);
  void pin(ValueId value);
  // Its address is known elsewhere: it is never moved.
  void fix(ValueId value) { storage_of(value).fixed = true; }
  // Drops the bytes of `value`, or of all that can be made again; false if they cannot be dropped.
  bool evict_value(ValueId value);
  void evict_all();
  // The bytes of `value`, which are resident, are elsewhere from now on: it becomes a constant without a
  // block.
  void move_out(ValueId value);

  bool defined(ValueId value) const { return records_.value(value).defined; }

  const Records& records() const { return records_; }
  void note_dropped(Records::Dropped* dropped) { records_.note_dropped(dropped); }
  Memory& memory() { return *memory_; }
  const Statistics& statistics() const { return statistics_; }
  std::uint64_t num_scores() const { return policy_->num_scores(); }
  Nanoseconds now() const { return clock_; }
  Bytes pinned_bytes() const { return pinned_bytes_; }
  // The most that was in use by what could not be evicted while an op of the program ran.
  Bytes needed_bytes() const { return needed_bytes_; }

  // Collects events, if set.
  void observe(std::vector<Event>* events, std::vector<Sample>* timeline) {
    events_ = events;
    timeline_ = timeline;
  }

  // Collects what becomes of every block, if set. Only where memory has addresses.
  void observe_blocks(std::vector<BlockEvent>* log) { block_log_ = log; }
  // The program passes a point with a name: `tag` goes into the block log.
  void mark(std::uint64_t tag) {
    if (block_log_ != nullptr) block_log_->push_back({clock_, BlockChange::kMark, kNone, tag, 0, 0});
  }

  // Throws std::logic_error if the books do not agree. For tests.
  void check() const;

 private:
  // An op that waits for its inputs, or `acquire` (no op).
  struct Frame {
    OpId op = kNone;
    ValueId target = kNone;      // the output that was asked for
    std::size_t first_held = 0;  // its part of held_
    std::uint32_t cursor = 0;
    bool program = false;  // the op runs for the first time
    bool entered = false;
    bool relaxed = false;  // its locks were given up before
  };

  // A constant that only recipes still need, and the op count at which to look what holds it.
  struct Retired {
    StorageId storage;
    Bytes nbytes;
    std::uint64_t due;
    std::uint64_t wait;
  };

  Storage& storage_of(ValueId value) { return records_.storage(records_.value(value).storage); }
  ValueId input(const Frame& frame, std::size_t i) const {
    return frame.op == kNone ? acquired_[i] : records_.op(frame.op).inputs[i].value;
  }
  std::size_t num_inputs(const Frame& frame) const {
    return frame.op == kNone ? acquired_.size() : records_.op(frame.op).inputs.size();
  }

  void drive();
  void enter(Frame& frame);
  bool wait_for_input(Frame& frame);
  void execute(const Frame& frame);
  void execute_once(const Frame& frame);
  bool relax_waiting_frames();
  template <typename Run>
  void run_with_room(Run&& run);
  void release_locks(const Frame& frame);
  void unwind();

  void run_reference(const OpDescription& description, std::vector<ValueId>& outputs);
  void add_outputs(OpId op, const OpDescription& description, std::vector<ValueId>& outputs);
  void define_outputs(OpId op, ValueId target, const std::vector<BlockId>& blocks);
  void take_over(ValueId from, ValueId to, bool keep_pinned);
  void place(Nanoseconds cost, Bytes nbytes);

  void lock(StorageId id);
  void unlock(StorageId id);
  void join_pool(StorageId id);
  void leave_pool(StorageId id);
  void access(StorageId id);
  void make_resident(StorageId id, BlockId block);
  void drop_bytes(StorageId id, BlockChange why);
  void evict(StorageId id, BlockChange why = BlockChange::kEvicted);
  void make_room_for(Bytes nbytes);
  bool evict_until_free(Bytes nbytes);
  void move_if_cheap(Bytes nbytes);
  void move_together(Bytes from, Bytes to, bool locked);
  void let_go(StorageId id);
  void evict_if_idle(StorageId id);
  void collect(StorageId id);
  void pin_storage(StorageId id);
  void forget_recipe(ValueId value);
  void try_banish(StorageId id);
  std::vector<StorageId> held_descendants(StorageId id);
  void retire_storage(StorageId id, Bytes nbytes);
  void settle();
  void free_running_blocks();
  void forget_running(BlockId block);
  void note_need() {
    if (frames_.empty()) needed_bytes_ = std::max(needed_bytes_, memory_->used() - candidate_bytes_);
  }
  void note(char kind, std::uint64_t tag) {
    if (events_ != nullptr) events_->push_back({kind, tag});
  }
  void note_block(BlockChange change, StorageId id) {
    if (block_log_ != nullptr) log_block(change, id);
  }
  void note_running(BlockChange change, BlockId block, Bytes nbytes) {
    if (block_log_ != nullptr) {
      block_log_->push_back({clock_, change, kNone, 0, memory_->address(block), memory_->footprint(nbytes)});
    }
  }
  void log_block(BlockChange change, StorageId id);
  void sample() {
    if (timeline_ != nullptr) timeline_->push_back({clock_, memory_->used()});
  }

  const EngineOptions options_;
  Records records_;
  Pool pool_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Policy> policy_;
  Device& device_;

  // The clock starts at 1 so that nothing is ever accessed at time 0, as in DTR's reference.
  Nanoseconds clock_ = 1;
  Bytes pinned_bytes_ = 0;
  Bytes candidate_bytes_ = 0;  // what the blocks of all candidates take
  Bytes needed_bytes_ = 0;
  End end_ = End::kLow;
  double log_density_sum_ = 0.0;  // of what was placed, weighted by bytes
  double density_weight_ = 0.0;

  std::vector<Frame> frames_;
  std::vector<char> held_;                          // per input of every frame: locked by it
  std::vector<ValueId> acquired_;                   // inputs of the op between acquire and commit
  std::vector<std::pair<BlockId, Bytes>> running_;  // blocks of the op that is running
  std::vector<BlockId> blocks_;                     // of the outputs of the op that is running
  Choice choice_;
  ClearingSearch clearing_search_;
  std::vector<ClearingCell> cells_;
  Bytes last_refused_ = 0;
  std::vector<Retired> retired_;
  std::uint64_t next_settled_ = 0;  // the earliest due time of retired_
  std::vector<StorageId> unlocking_;
  std::vector<StorageId> collecting_;  // empty; room for the next time

  Statistics statistics_;
  std::vector<Event>* events_ = nullptr;
  std::vector<Sample>* timeline_ = nullptr;
  std::vector<BlockEvent>* block_log_ = nullptr;
};

// Calls `run`, which asks for memory, again as long as there is something left to try when it finds none.
template <typename Run>
void Engine::run_with_room(Run&& run) {
  for (;;) {
    try {
      run();
      return;
    } catch (const OutOfMemory& error) {
      last_refused_ = error.requested;
      free_running_blocks();
      if (!make_room(error.at_once) && !relax_waiting_frames()) throw;
    }
  }
}

}  // namespace remint
