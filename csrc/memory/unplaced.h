// Memory of the arena's size and alignment without addresses, which notes how long every block lives. For a
// step that is planned: with all lifetimes known, addresses are found afterwards (placement.h).
#pragma once

#include <algorithm>
#include <vector>

#include "memory/memory.h"

namespace remint {

class Unplaced final : public Memory {
 public:
  struct Lifetime {
    Bytes nbytes;        // as asked for
    std::uint32_t dies;  // it is free before the request with this number; kNone: it is not freed
    bool refused = false;
  };

  Unplaced(Bytes budget, Bytes alignment) : Memory(budget), alignment_(alignment) {}

  BlockId allocate(Bytes nbytes, End) override {
    const Bytes need = footprint(nbytes);
    if (used() + need > budget()) return kNone;
    took(need);
    lifetimes_.push_back({nbytes, kNone});
    return static_cast<BlockId>(lifetimes_.size() - 1);
  }
  void own(BlockId, StorageId) override {}
  void free(BlockId block, Bytes nbytes) override {
    gave(footprint(nbytes));
    lifetimes_[block].dies = static_cast<std::uint32_t>(lifetimes_.size());
  }
  // It lives for no time.
  void refused(Bytes nbytes) override {
    lifetimes_.push_back({nbytes, static_cast<std::uint32_t>(lifetimes_.size()), true});
  }
  Bytes footprint(Bytes nbytes) const override {
    return std::max<Bytes>((nbytes + alignment_ - 1) / alignment_ * alignment_, alignment_);
  }
  Bytes address(BlockId block) const override { return block; }

  // Of every request that was served or refused, in order; the number of a request is that of its block.
  const std::vector<Lifetime>& lifetimes() const { return lifetimes_; }

 private:
  const Bytes alignment_;
  std::vector<Lifetime> lifetimes_;
};

}  // namespace remint
