// Lifetimes: what the references of the program, and the recipes that read a storage, keep alive.
//
// When the last reference goes, the bytes are evicted or freed (Deallocation says which). When no recipe can
// need a storage either, its record is dropped, and so is every record that was kept only for it.
#pragma once

#include <cassert>
#include <vector>

#include "engine/transitions.h"

namespace remint {

// A constant that only recipes still need, and the op count at which to look again at what was made from it.
struct Retired {
  StorageId storage;
  Bytes nbytes;
  std::uint64_t due;
  std::uint64_t wait;
};

class Lifetimes {
 public:
  Lifetimes(EngineState& state, Transitions& transitions) : state_(state), transitions_(transitions) {}

  void retain(ValueId value) { ++state_.storage_of(value).references; }
  void release(ValueId value) {
    const StorageId id = state_.records.value(value).storage;
    Storage& s = state_.records.storage(id);
    assert(s.references > 0);
    if (--s.references == 0) on_last_release(id);
  }

  void unlock(StorageId id) {
    if (transitions_.unlock(id)) after_unlock(id);
  }
  void unlock_for_read(StorageId id) {
    if (transitions_.unlock_for_read(id)) after_unlock(id);
  }

  // Bytes that leave to make room go the way on which they are back sooner: they are recomputed, or fetched
  // from the tier. What the program released is recomputed.
  void evict(StorageId id, BlockChange why = BlockChange::kEvicted);
  bool evict_value(ValueId value);
  void evict_all();
  // Evicts all that the program has released.
  void evict_released();

  // Pinned bytes are never recomputed, so their recipe is dropped. Views of them keep theirs.
  void pin_storage(StorageId id);
  void forget_recipe(ValueId value);
  // The bytes of `from` become those of `to`.
  void take_over(ValueId from, ValueId to, bool keep_pinned);

  // Drops the record of `id`, and all that were kept only for it, if nothing can need them any more.
  void collect(StorageId id);

  // Storages that the program has references to and whose recipes lead to `ids`, without those behind another
  // such storage. Once these are pinned, nothing reads `ids` any more: the others are kept only for them.
  std::vector<StorageId> referenced_descendants(const std::vector<StorageId>& ids);

  // In the middle of a step nearly everything was computed from a constant that the program has just
  // released. What is left of that so many ops later counts.
  static constexpr std::uint64_t kFirstReview = 64;

  // Of everything that was computed from `id`, the last one that the program has, or kNone.
  StorageId last_descendant(StorageId id);
  // Whether recipes that lead to `value` read bytes that the program has freed and will have again.
  bool depends_on_away(ValueId value);
  // Drops bytes that the program has freed and will have again, those that it freed first; only those of
  // which that is sure, or all. False: there are none.
  bool drop_due_back(DueBack at_least);

  // The program released a constant that recipes still read.
  void retire(ValueId value, Bytes nbytes) { retire_storage(state_.records.value(value).storage, nbytes); }
  bool review_is_due() const { return !retired_.empty() && state_.statistics.num_ops >= next_review_; }
  // For a review: takes all entries out. `still_retired` says whether one still matters; `put_back` keeps it.
  std::vector<Retired> take_retired();
  bool still_retired(const Retired& entry) const;
  void put_back(Retired entry);

 private:
  void on_last_release(StorageId id);
  void after_unlock(StorageId id);
  void evict_if_idle(StorageId id);
  void retire_storage(StorageId id, Bytes nbytes);
  void banish(StorageId id);
  void drop_bytes_for_good(StorageId id);
  void recompute_instead(StorageId id);

  EngineState& state_;
  Transitions& transitions_;
  std::vector<Retired> retired_;
  std::vector<StorageId> due_back_;    // resident, in the order in which the program freed them
  std::uint64_t next_review_ = 0;      // the earliest due time of retired_
  std::vector<StorageId> collecting_;  // empty; kept for the next time
};

}  // namespace remint
