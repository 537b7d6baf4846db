#include "memory/arena.h"

#include <iterator>
#include <string>

namespace remint {

Arena::Arena(Bytes budget, Bytes alignment) : Memory(budget / alignment * alignment), alignment_(alignment) {
  if (this->budget() == 0) return;
  first_ = take_slot();
  blocks_[first_] = Block{0, this->budget(), kNone, kNone, kFree};
  add_free(first_);
}

Bytes Arena::footprint(Bytes nbytes) const {
  // A storage of no bytes has a block too, so that every resident storage has an address of its own.
  return std::max<Bytes>((nbytes + alignment_ - 1) / alignment_ * alignment_, alignment_);
}

// Always inline: every request that does not fill its block runs it, and a call is measurable.
[[gnu::always_inline]] inline BlockId Arena::split(BlockId id, Bytes low_bytes) {
  const BlockId fresh = take_slot();
  insert_after(id, fresh);
  Block& low = blocks_[id];
  Block& high = blocks_[fresh];
  high.address = low.address + low_bytes;
  high.nbytes = low.nbytes - low_bytes;
  high.owner = kFree;
  low.nbytes = low_bytes;
  return fresh;
}

BlockId Arena::allocate(Bytes nbytes, End end) {
  const Bytes need = footprint(nbytes);
  auto fit = free_.lower_bound({need, {0, 0}});
  if (fit == free_.end()) return kNone;
  if (end == End::kHigh) {
    // The highest of the blocks of the fitting size.
    auto after = free_.upper_bound({fit->first, {budget(), kNone}});
    fit = std::prev(after);
  }
  return allocate_in(fit->second.second, nbytes, end);
}

BlockId Arena::allocate_in(BlockId id, Bytes nbytes, End end) {
  const Bytes need = footprint(nbytes);
  remove_free(id);
  const Bytes rest = blocks_[id].nbytes - need;
  if (rest > 0) {
    const BlockId fresh = split(id, end == End::kLow ? need : rest);
    add_free(end == End::kLow ? fresh : id);
    if (end == End::kHigh) id = fresh;
  }
  blocks_[id].owner = kNoRecord;
  took(need);
  return id;
}

BlockId Arena::allocate_at(Bytes address, Bytes nbytes) {
  const Bytes need = footprint(nbytes);
  if (address < 0 || address % alignment_ != 0 || need > budget() || address > budget() - need) return kNone;
  index_addresses(true);
  auto above = free_at_.upper_bound(address);
  if (above == free_at_.begin()) return kNone;
  BlockId id = std::prev(above)->second;
  const Bytes below = address - blocks_[id].address;
  if (below + need > blocks_[id].nbytes) return kNone;
  remove_free(id);
  if (below > 0) {
    const BlockId fresh = split(id, below);
    add_free(id);
    id = fresh;
  }
  if (blocks_[id].nbytes > need) add_free(split(id, need));
  blocks_[id].owner = kNoRecord;
  took(need);
  return id;
}

void Arena::index_addresses(bool on) {
  if (on == indexed_) return;
  indexed_ = on;
  free_at_.clear();
  if (!on) return;
  for (const auto& [nbytes, place] : free_) free_at_.insert(place);
}

void Arena::add_to_index(BlockId id) {
  free_at_.insert({blocks_[id].address, id});
}

void Arena::remove_from_index(BlockId id) {
  free_at_.erase(blocks_[id].address);
}

void Arena::free(BlockId id, Bytes) {
  gave(blocks_[id].nbytes);
  blocks_[id].owner = kFree;
  const BlockId next = blocks_[id].next;
  if (next != kNone && blocks_[next].free()) {
    remove_free(next);
    blocks_[id].nbytes += blocks_[next].nbytes;
    erase(next);
  }
  const BlockId previous = blocks_[id].previous;
  if (previous != kNone && blocks_[previous].free()) {
    remove_free(previous);
    blocks_[previous].nbytes += blocks_[id].nbytes;
    erase(id);
    id = previous;
  }
  add_free(id);
}

bool Arena::slide_down(BlockId id) {
  const BlockId gap = blocks_[id].previous;
  if (gap == kNone || !blocks_[gap].free()) return false;
  remove_free(gap);
  // The two change places.
  const BlockId below = blocks_[gap].previous;
  const BlockId above = blocks_[id].next;
  blocks_[id].address = blocks_[gap].address;
  blocks_[gap].address = blocks_[id].address + blocks_[id].nbytes;
  blocks_[id].previous = below;
  blocks_[id].next = gap;
  blocks_[gap].previous = id;
  blocks_[gap].next = above;
  if (below == kNone) {
    first_ = id;
  } else {
    blocks_[below].next = id;
  }
  if (above != kNone) {
    blocks_[above].previous = gap;
    if (blocks_[above].free()) {
      remove_free(above);
      blocks_[gap].nbytes += blocks_[above].nbytes;
      erase(above);
    }
  }
  add_free(gap);
  return true;
}

Bytes Arena::adjacent_free(BlockId id) const {
  Bytes sum = 0;
  for (BlockId beside : {blocks_[id].previous, blocks_[id].next}) {
    if (beside != kNone && blocks_[beside].free()) sum += blocks_[beside].nbytes;
  }
  return sum;
}

Bytes Arena::compact(Bytes low, Bytes high, const std::function<bool(StorageId)>& movable,
                     const std::function<void(StorageId, Bytes from, Bytes to)>& moved, BlockId first) {
  Bytes sum = 0;
  for (BlockId id = first == kNone ? first_ : first; id != kNone; id = blocks_[id].next) {
    const Bytes from = blocks_[id].address;
    if (from >= high) break;
    if (from < low || !blocks_[id].has_record() || !movable(blocks_[id].owner) || !slide_down(id)) continue;
    sum += blocks_[id].nbytes;
    moved(blocks_[id].owner, from, blocks_[id].address);
  }
  return sum;
}

BlockId Arena::take_slot() {
  if (slots_.empty()) {
    blocks_.emplace_back();
    return static_cast<BlockId>(blocks_.size() - 1);
  }
  const BlockId id = slots_.back();
  slots_.pop_back();
  return id;
}

void Arena::insert_after(BlockId id, BlockId fresh) {
  blocks_[fresh].previous = id;
  blocks_[fresh].next = blocks_[id].next;
  if (blocks_[id].next != kNone) blocks_[blocks_[id].next].previous = fresh;
  blocks_[id].next = fresh;
}

void Arena::erase(BlockId id) {
  const Block& block = blocks_[id];
  if (block.previous != kNone) blocks_[block.previous].next = block.next;
  if (block.next != kNone) blocks_[block.next].previous = block.previous;
  if (id == first_) first_ = block.next;
  slots_.push_back(id);
}

void Arena::check() const {
  auto fail = [](const std::string& what) { throw std::logic_error("arena: " + what); };
  Bytes address = 0;
  Bytes in_use = 0;
  std::size_t free_blocks = 0;
  bool after_free = false;
  BlockId previous = kNone;
  for (BlockId id = first_; id != kNone; id = blocks_[id].next) {
    const Block& block = blocks_[id];
    if (block.address != address) fail("a gap or an overlap at " + std::to_string(address));
    if (block.previous != previous) fail("a broken link at " + std::to_string(address));
    if (block.nbytes <= 0) fail("an empty block at " + std::to_string(address));
    if (block.free()) {
      if (after_free) fail("two free neighbours at " + std::to_string(address));
      if (free_.count({block.nbytes, {block.address, id}}) == 0) fail("a free block that is not listed");
      if (indexed_) {
        auto found = free_at_.find(block.address);
        if (found == free_at_.end() || found->second != id) fail("a free block that the index does not have");
      }
      ++free_blocks;
    } else {
      in_use += block.nbytes;
    }
    after_free = block.free();
    address += block.nbytes;
    previous = id;
  }
  if (address != budget()) fail("blocks do not add up to the budget");
  if (in_use != used()) fail("used bytes are miscounted");
  if (free_blocks != free_.size()) fail("the free list has blocks that are not free");
  if (free_at_.size() != (indexed_ ? free_blocks : 0)) fail("the index has blocks that are not free");
}

}  // namespace remint
