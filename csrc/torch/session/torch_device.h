// The engine's device for real tensors: runs recorded ops again, and points tensors to where their bytes are.
#pragma once

#include <vector>

#include "engine/device.h"
#include "torch/session/state.h"

namespace remint {

class TorchDevice final : public Device {
 public:
  explicit TorchDevice(SessionState& state) : state_(state) {}

  void run(const Op& op, std::vector<BlockId>& blocks) override;
  void evicted(StorageId id) override;
  void materialized(StorageId id) override;
  void moved(StorageId id, Bytes from, Bytes to) override;
  bool offload(StorageId id) override;
  void fetch(StorageId id, BlockId block) override;
  void dropped_copy(StorageId id) override;
  ValueId came_back(StorageId id) override;
  bool has_bytes_of(ValueId value, StorageId id) override;

 private:
  void take_outputs(const Op& op, const RecipeForm& form, const torch::jit::Stack& stack,
                    std::vector<BlockId>& blocks);
  void order_replay(const Op& op, const std::vector<void*>& inputs, const std::vector<std::size_t>& sizes,
                    const std::vector<BlockId>& blocks);
  void timed(Nanoseconds started, std::size_t nbytes);
  c10::intrusive_ptr<c10::StorageImpl> tensor_storage(StorageId id) const;

  SessionState& state_;
};

}  // namespace remint
