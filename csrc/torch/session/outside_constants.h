// Storages outside of the arena that recipes read: weights made before the budget, inputs, memory of other
// budgets. A recipe must find them as they were, so the session keeps them alive while one reads them.
//
// Weights are used, dropped and used again all the time, so the record of a constant that no recipe reads is
// cached.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <vector>

#include "base/types.h"

namespace remint {

struct SessionState;

class OutsideConstants {
 public:
  explicit OutsideConstants(SessionState& state) : state_(state) {}

  // The value of `storage`, if a recipe reads it; kNone otherwise.
  ValueId find(const c10::StorageImpl* storage) const;
  // The value of `storage`, a new one if there is none. The caller gets one reference to it. Call
  // SessionState::forget_dropped before.
  ValueId use(c10::StorageImpl* storage);
  // The bytes of `value` are outside of the arena from now on, in `storage`.
  void adopt(ValueId value, c10::intrusive_ptr<c10::StorageImpl> storage);

  c10::StorageImpl* storage(StorageId id) const { return entries_[id].storage.get(); }

  // The record of a storage is gone, or cached. What was kept for it goes to `gone`.
  void forget(StorageId id, std::vector<c10::intrusive_ptr<c10::StorageImpl>>& gone);
  void cache(StorageId id, std::vector<c10::intrusive_ptr<c10::StorageImpl>>& gone);
  void clear();
  // Calls visit(number, nbytes, first_number) for each that a recipe reads.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Entry& entry : entries_) {
      if (entry.storage) visit(entry.number, static_cast<Bytes>(entry.storage->nbytes()), entry.first_number);
    }
  }

 private:
  struct Entry {
    c10::intrusive_ptr<c10::StorageImpl> storage;  // null: it is cached, or no constant
    std::uint64_t number = 0;
    std::uint64_t first_number = 0;  // before it was cached, if it ever was
    bool retired = false;            // the program dropped it
    bool used = true;                // since the last sweep
  };

  bool is_read(ValueId value) const;
  // Keeps `storage` alive for the recipes that read `value`.
  Entry& keep(ValueId value, c10::intrusive_ptr<c10::StorageImpl> storage);
  void sweep();

  SessionState& state_;
  ska::flat_hash_map<const c10::StorageImpl*, ValueId> values_;
  std::vector<Entry> entries_;  // by storage id
  std::size_t until_sweep_ = 64;
};

}  // namespace remint
