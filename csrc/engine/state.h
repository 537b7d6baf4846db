// The state that the parts of the engine share. It has no logic of its own but small questions about itself.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/candidates.h"
#include "engine/device.h"
#include "engine/guide.h"
#include "engine/observer.h"
#include "engine/options.h"
#include "engine/records.h"
#include "engine/running_ops.h"
#include "engine/statistics.h"
#include "engine/tier.h"
#include "memory/arena.h"
#include "policies/policy.h"

namespace remint {

// A lock of a reader outside of all ops. An in-place op can take the bytes over while they are read: the
// record of the value stays until it is unlocked, and the lock holds the storage that has the bytes.
struct ReadLock {
  ValueId value;
  StorageId bytes;
};

struct EngineState {
  EngineState(const EngineOptions& options, std::unique_ptr<Memory> memory, Device& device);

  Storage& storage_of(ValueId value) { return records.storage(records.value(value).storage); }
  const Storage& storage_of(ValueId value) const { return records.storage(records.value(value).storage); }
  bool defined(ValueId value) const { return records.value(value).defined; }
  std::uint64_t root_tag(StorageId id) const {
    const Storage& s = records.storage(id);
    return s.values.empty() ? 0 : records.value(s.values[0]).tag;
  }

  // Tells observers about the block of a storage, or about one that an op took or gave back.
  void tell_block(BlockChange change, StorageId id) {
    if (observers.interested(Observer::kBlocks)) tell_blocks(change, id);
  }
  void tell_taken(BlockChange change, BlockId block, Bytes nbytes) {
    if (observers.interested(Observer::kBlocks)) tell_taken_blocks(change, block, nbytes);
  }
  void tell_computed(std::uint64_t tag) {
    observers.tell(Observer::kDecisions, [&](Observer& observer) { observer.computed(tag); });
  }
  void tell_candidate(StorageId id) {
    observers.tell(Observer::kCandidates, [&](Observer& observer) {
      observer.became_candidate(root_tag(id), records.storage(id).block);
    });
  }
  void tell_used() {
    observers.tell(Observer::kMemoryUse, [&](Observer& observer) { observer.used(clock, memory->used()); });
  }

  // Whether the bytes may leave while nothing locks them: they can be recomputed, or go to the tier if there
  // is room then.
  bool may_leave(const Storage& s) const {
    // On the arena, what an op made of a constant elsewhere has no block: nothing would become free.
    if (!s.has_bytes() || (arena != nullptr && s.block == kNone)) return false;
    return !s.pinned || (tier != nullptr && s.block != kNone && !s.fixed && s.nbytes > 0);
  }
  // Whether the bytes are pinned, and cannot leave for the tier either.
  bool is_immovable(const Storage& s) const {
    return s.pinned && (tier == nullptr || s.fixed || s.residency == Residency::kElsewhere);
  }
  // Pinned bytes that stay, whatever happens.
  Bytes immovable_bytes() const { return tier == nullptr ? pinned_bytes : fixed_bytes; }

  // To be called when an op of the program has locked its inputs, and after each of its allocations.
  void note_need() {
    if (notes_need) needed_bytes = std::max(needed_bytes, memory->used() - candidates.footprint());
  }

  const EngineSettings settings;
  const std::unique_ptr<Memory> memory;
  Arena* const arena;  // the same, or null: ideal memory
  Records records;
  Candidates candidates;
  const std::unique_ptr<Tier> tier;  // null: there is none
  const std::unique_ptr<Policy> policy;
  Device& device;
  RunningOps running;
  std::vector<ReadLock> read_locks;
  Observers observers;
  Guide guide;
  // settings.max_rematerialized, unless the caller changed it.
  Nanoseconds max_rematerialized;
  // settings.deallocation; lazy while a guide is followed, which says what is evicted when.
  Deallocation deallocation;
  Statistics statistics;
  // The clock starts at 1 so that nothing is ever accessed at time 0, as in DTR's reference.
  Nanoseconds clock = 1;
  Bytes pinned_bytes = 0;  // resident or offloaded
  Bytes fixed_bytes = 0;   // pinned, and never moved
  Bytes needed_bytes = 0;
  bool notes_need = true;

 private:
  void tell_blocks(BlockChange change, StorageId id);
  void tell_taken_blocks(BlockChange change, BlockId block, Bytes nbytes);
};

// Throws std::logic_error if the books do not agree while no op runs.
void check_books(const EngineState& state);

}  // namespace remint
