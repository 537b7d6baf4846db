#include "torch/session/native_blocks.h"

#include <utility>
#include <vector>

#include "torch/dispatch/arguments.h"
#include "torch/session/owned_storages.h"
#include "torch/session/state.h"

namespace remint {

void NativeBlocks::bind(Bytes offset, c10::DataPtr memory) {
  c10::DataPtr before = take(offset);
  const std::lock_guard<std::mutex> lock(mutex_);
  offsets_[memory.get()] = offset;
  memory_[offset] = std::move(memory);
}

c10::DataPtr NativeBlocks::take(Bytes offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = memory_.find(offset);
  if (found == memory_.end()) return {};
  c10::DataPtr memory = std::move(found->second);
  offsets_.erase(memory.get());
  memory_.erase(found);
  return memory;
}

void NativeBlocks::rename(Bytes from, Bytes to) {
  if (from != to) bind(to, take(from));
}

void* NativeBlocks::at(Bytes offset) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = memory_.find(offset);
  return found == memory_.end() ? nullptr : found->second.get();
}

bool NativeBlocks::contains(const void* address) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return offsets_.count(address) != 0;
}

Bytes NativeBlocks::offset(const void* address) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return offsets_.at(address);
}

void take_results(SessionState& state, const torch::jit::Stack& stack, std::size_t first) {
  struct Made {
    c10::StorageImpl* storage;
    std::size_t references;
  };
  std::vector<Made> all;
  bool held = false;  // a tensor that somebody else has, too, was there before
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !state.backend.is_plain(tensor)) return;
      c10::StorageImpl* storage = storage_of(tensor);
      if (storage == nullptr) return;
      for (Made& made : all) {
        if (made.storage == storage) {
          ++made.references;
          return;
        }
      }
      all.push_back({storage, 1});
      held = held || tensor.use_count() > 1;
    });
  }
  if (held) return;
  // As in the arena, numbers are not managed.
  const std::size_t least = state.options.chaos ? 1 : 65;
  const c10::DeleterFnPtr native = state.backend.ordinary_allocator()->raw_deleter();
  for (const Made& made : all) {
    c10::DataPtr& pointer = made.storage->_mutable_data_ptr_no_checks();
    const std::size_t nbytes = made.storage->nbytes();
    if (pointer.get_deleter() != native || nbytes < least) continue;
    if (c10::raw::intrusive_ptr::use_count(made.storage) > made.references) continue;
    const BlockId block = state.engine->allocate(static_cast<Bytes>(nbytes));
    const Bytes offset = state.arena->block(block).address;
    // An op that failed may have left memory at this offset.
    hand_back(state, offset, nbytes);
    void* address = pointer.get();
    c10::DataPtr memory(address, address, &raw_deleter, state.backend.device());
    std::swap(pointer, memory);
    state.region->native()->bind(offset, std::move(memory));
    if (state.order != nullptr) {
      // PyTorch's allocator has ordered it after its former use.
      state.order->forget(address, nbytes);
      state.order->before_write(address, nbytes);
    }
    state.owned->add_raw(offset, {block, static_cast<Bytes>(nbytes), /*running=*/true, 0});
    if (!state.replaying) state.observer->requested(offset, static_cast<Bytes>(nbytes));
  }
}

c10::DataPtr hand_back(SessionState& state, Bytes offset, std::size_t nbytes) {
  c10::DataPtr memory = state.region->native()->take(offset);
  if (state.order == nullptr || memory.get() == nullptr) return memory;
  for (const c10::Stream& stream : state.order->forget(memory.get(), nbytes)) {
    state.backend.keep_for_stream(memory, stream);
  }
  return memory;
}

void* address_in_block(SessionState& state, BlockId block, std::size_t nbytes) {
  const Bytes offset = state.arena->block(block).address;
  NativeBlocks* native = state.region->native();
  if (native != nullptr && native->at(offset) == nullptr) {
    native->bind(offset, state.backend.ordinary_allocator()->allocate(nbytes));
  }
  return state.region->at(offset);
}

}  // namespace remint
