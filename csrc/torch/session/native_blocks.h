// The blocks of a budget with a soft wall: each is memory of the device's own allocator.
//
// The arena of such a budget only counts: its addresses are numbers, by which the blocks are known. So a move
// within it costs nothing, and an evicted block goes back to the device's allocator.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>

#include <mutex>
#include <unordered_map>

#include "base/types.h"

namespace remint {

struct SessionState;

class NativeBlocks {
 public:
  // The block at `offset` is `memory` from now on.
  void bind(Bytes offset, c10::DataPtr memory);
  // Takes the memory of a block away; null if it has none.
  c10::DataPtr take(Bytes offset);
  void rename(Bytes from, Bytes to);
  void* at(Bytes offset) const;
  bool contains(const void* address) const;
  Bytes offset(const void* address) const;

 private:
  // Deleters look here from any thread. Nothing is freed under it: the device's allocator has a lock, too.
  mutable std::mutex mutex_;
  std::unordered_map<Bytes, c10::DataPtr> memory_;
  std::unordered_map<const void*, Bytes> offsets_;
};

// The tensors of `stack`, from `first` on, that a kernel has just made become raw memory of the session.
// Makes room for them in its books; throws OutOfMemory.
void take_results(SessionState& state, const torch::jit::Stack& stack, std::size_t first);
// Takes the memory at `offset` out of the session, in order of all streams that used it.
c10::DataPtr hand_back(SessionState& state, Bytes offset, std::size_t nbytes);
// Where `block` is. A block that has no memory gets some.
void* address_in_block(SessionState& state, BlockId block, std::size_t nbytes);

}  // namespace remint
