// Which tensor storage is which record of the engine, and the raw memory of the arena that has no record.
//
// Memory that a kernel or a factory asks for is raw at first. When an op returns it as an output, it becomes
// the storage of a new value. When an op reads raw memory that no op made, it becomes a constant: nothing can
// recompute it.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <vector>

#include "torch/session/state.h"

namespace remint {

struct RawBlock {
  BlockId block = kNone;
  Bytes nbytes = 0;
  bool running = false;        // the kernel that is running asked for it
  std::uint64_t number = 0;    // unless it is running
  bool address_known = false;  // the kernel that is running handed it out, or it was made while nobody saw it
};

class OwnedStorages {
 public:
  explicit OwnedStorages(SessionState& state) : state_(state) {}

  // The owner of a storage, if this session manages it.
  OwnedStorage* find(const c10::StorageImpl* storage) const;
  OwnedStorage* owner(StorageId id) const { return id < owners_.size() ? owners_[id] : nullptr; }
  const std::vector<OwnedStorage*>& owners() const { return owners_; }

  // `storage`, whose bytes are at `address`, is the storage of `value` from now on.
  OwnedStorage* adopt(c10::StorageImpl* storage, void* address, ValueId value, const Operator* made_by);
  // The owner has another value from now on: an op wrote it in place.
  void change_value(OwnedStorage* owned, ValueId value, const Operator* made_by);
  // The program dropped its last tensor.
  void release(OwnedStorage* owned);
  // The storage of `owned` has memory of its own from now on: `memory`.
  void disown(OwnedStorage* owned, c10::StorageImpl& storage, c10::DataPtr memory);
  // The record of a storage is gone.
  void forget(StorageId id) {
    if (id < owners_.size()) owners_[id] = nullptr;
  }
  void clear();

  // Raw memory, by offset in the arena.
  bool is_raw(const c10::StorageImpl& storage) const;
  void add_raw(Bytes offset, const RawBlock& raw);
  RawBlock* find_raw(Bytes offset);
  void erase_raw(Bytes offset) { raw_.erase(offset); }
  const ska::flat_hash_map<Bytes, RawBlock>& raw() const { return raw_; }
  // A storage on raw memory that no op made becomes a constant.
  OwnedStorage* adopt_raw(c10::StorageImpl* storage);
  // Whatever is raw now stays where it is.
  void fix_raw();

  // What the running kernel asked for. Kernels nest where an op runs again in the middle of another: each
  // frees only what came after its own mark.
  std::size_t running_mark() const { return running_.size(); }
  // What the kernel asked for since `mark` and did not free stays as raw memory, but for the blocks of its
  // outputs. Calls kept(offset, raw) for each.
  template <typename Kept>
  void keep_running(std::size_t mark, const std::vector<BlockId>& outputs, Kept&& kept);

 private:
  void set_owner(ValueId value, OwnedStorage* owned);

  OwnedStorage* look_up(const c10::StorageImpl* storage) const;

  SessionState& state_;
  std::vector<OwnedStorage*> owners_;  // by storage id
  // All owners, while several budgets are open: then the DataPtr of a storage may be that of another session,
  // which may change it at any time. It is filled when it is needed, and empty otherwise.
  mutable ska::flat_hash_map<const c10::StorageImpl*, OwnedStorage*> by_storage_;
  mutable bool by_storage_filled_ = false;
  ska::flat_hash_map<Bytes, RawBlock> raw_;
  std::vector<Bytes> running_;  // offsets
};

template <typename Kept>
void OwnedStorages::keep_running(std::size_t mark, const std::vector<BlockId>& outputs, Kept&& kept) {
  for (std::size_t i = mark; i < running_.size(); ++i) {
    RawBlock* raw = find_raw(running_[i]);
    if (raw == nullptr || !raw->running) continue;
    raw->running = false;
    if (std::find(outputs.begin(), outputs.end(), raw->block) != outputs.end()) continue;
    state_.engine->make_raw(raw->block);
    raw->number = state_.next_number++;
    kept(running_[i], *raw);
  }
  running_.resize(mark);
}

}  // namespace remint
