// The arena: one contiguous range of exactly the budget, cut into blocks in address order.
//
// Best fit; neighbouring free blocks merge at once. A request names the end it wants to be near: cheap bytes
// gather at the low end and expensive ones at the high end (Coop, 2023), so that windows of neighbours cost
// alike.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "memory/memory.h"

namespace remint {

class Arena final : public Memory {
 public:
  // What stands in a block: free bytes, bytes without a record (of an op that is running, or raw), or a
  // storage.
  static constexpr std::uint32_t kFree = kNone;
  static constexpr std::uint32_t kNoRecord = kNone - 1;

  struct Block {
    Bytes address = 0;
    Bytes nbytes = 0;
    BlockId previous = kNone;
    BlockId next = kNone;
    std::uint32_t owner = kFree;
    bool free() const { return owner == kFree; }
    bool has_record() const { return owner < kNoRecord; }
  };

  Arena(Bytes budget, Bytes alignment);

  BlockId allocate(Bytes nbytes, End end) override;
  void own(BlockId block, StorageId storage) override { blocks_[block].owner = storage; }
  void free(BlockId block, Bytes nbytes) override;
  Bytes footprint(Bytes nbytes) const override;
  Bytes address(BlockId block) const override { return blocks_[block].address; }

  // Allocates from `block`, which is free and large enough.
  BlockId allocate_in(BlockId block, Bytes nbytes, End end);

  // Allocates exactly the bytes from `address` on, or returns kNone if not all of them are free. The address
  // has to be a multiple of the alignment. It needs the index by address, and builds it if it is off.
  BlockId allocate_at(Bytes address, Bytes nbytes);
  // Turns the index of free blocks by address on or off. Only allocate_at needs it, and plain requests are
  // quicker without.
  void index_addresses(bool on);

  const Block& block(BlockId id) const { return blocks_[id]; }
  std::size_t num_blocks() const { return blocks_.size() - slots_.size(); }
  BlockId first() const { return first_; }
  Bytes largest_free() const { return free_.empty() ? 0 : free_.rbegin()->first; }
  // Calls visit(BlockId) for the largest free blocks, at most `most` of them.
  template <typename Visit>
  void for_largest_free(std::size_t most, Visit&& visit) const {
    for (auto each = free_.rbegin(); each != free_.rend() && most > 0; ++each, --most)
      visit(each->second.second);
  }
  // Free bytes that adjoin `block` on both sides.
  Bytes adjacent_free(BlockId block) const;

  // Moves every block between two addresses that may be moved towards the lower one, in order; with nothing
  // in the way, what is free there becomes one block. Calls moved(storage, from, to) for each storage that
  // changes its address, lowest first. Returns the number of bytes moved. `first` is the lowest block that
  // may be moved, if that is known: the way to it through a long list is saved.
  Bytes compact(Bytes low, Bytes high, const std::function<bool(StorageId)>& movable,
                const std::function<void(StorageId, Bytes from, Bytes to)>& moved, BlockId first = kNone);

  // Throws std::logic_error if blocks overlap, leave gaps, or the free lists are not what the blocks say.
  void check() const override;

 private:
  // Moves `block` down into the free bytes right below it, if there are any; false if not. Its id stays.
  bool slide_down(BlockId block);
  BlockId take_slot();
  void insert_after(BlockId block, BlockId fresh);
  void erase(BlockId block);
  // Cuts `block`, which is free and not listed, in two. Returns the upper part, free and not listed.
  BlockId split(BlockId block, Bytes low_bytes);
  // Not inline: plain requests must not pay for the index.
  void add_to_index(BlockId id);
  void remove_from_index(BlockId id);
  void add_free(BlockId id) {
    free_.insert({blocks_[id].nbytes, {blocks_[id].address, id}});
    if (indexed_) [[unlikely]]
      add_to_index(id);
  }
  void remove_free(BlockId id) {
    free_.erase({blocks_[id].nbytes, {blocks_[id].address, id}});
    if (indexed_) [[unlikely]]
      remove_from_index(id);
  }

  const Bytes alignment_;
  std::vector<Block> blocks_;
  std::vector<BlockId> slots_;
  BlockId first_ = kNone;
  // By size, then by address.
  std::set<std::pair<Bytes, std::pair<Bytes, BlockId>>> free_;
  // The same blocks by address, while `indexed_`; otherwise empty.
  std::map<Bytes, BlockId> free_at_;
  bool indexed_ = false;
};

}  // namespace remint
