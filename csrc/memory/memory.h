// Memory: where bytes live. `Ideal` counts bytes only, as DTR's paper does; `Arena` gives them addresses.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "base/types.h"

namespace remint {

// The end of the arena near which bytes are placed.
enum class End : std::uint8_t { kLow, kHigh };

class Memory {
 public:
  explicit Memory(Bytes budget) : budget_(budget) {}
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Takes `nbytes`, or returns kNone if they do not fit now.
  virtual BlockId allocate(Bytes nbytes, End end) = 0;
  // Gives an allocated block to a storage.
  virtual void own(BlockId block, StorageId storage) = 0;
  // Gives `nbytes`, allocated as `block`, back.
  virtual void free(BlockId block, Bytes nbytes) = 0;
  // A request of `nbytes` does not fit, and nothing more can be evicted for it.
  virtual void refused(Bytes) {}
  // What a request of `nbytes` takes, alignment included.
  virtual Bytes footprint(Bytes nbytes) const { return nbytes; }
  // Where `block` is; ideal memory has no addresses.
  virtual Bytes address(BlockId) const { return 0; }
  virtual void check() const {}

  Bytes budget() const { return budget_; }
  Bytes used() const { return used_; }
  Bytes peak() const { return peak_; }
  // The peak since it was last reset.
  Bytes recent_peak() const { return recent_peak_; }
  void reset_recent_peak() { recent_peak_ = used_; }

 protected:
  void took(Bytes nbytes) {
    used_ += nbytes;
    if (used_ > recent_peak_) {
      recent_peak_ = used_;
      peak_ = std::max(peak_, used_);
    }
  }
  void gave(Bytes nbytes) { used_ -= nbytes; }

 private:
  const Bytes budget_;
  Bytes used_ = 0;
  Bytes peak_ = 0;
  Bytes recent_peak_ = 0;  // at most peak_
};

class Ideal final : public Memory {
 public:
  using Memory::Memory;
  BlockId allocate(Bytes nbytes, End) override {
    if (used() + nbytes > budget()) return kNone;
    took(nbytes);
    return 0;
  }
  void own(BlockId, StorageId) override {}
  void free(BlockId, Bytes nbytes) override { gave(nbytes); }
};

}  // namespace remint
