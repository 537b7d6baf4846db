// One operator call of the program: has its arguments resident, runs the kernel, writes the recipe, and
// adopts what the kernel made. The op driver of the engine says when.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/program_op.h"
#include "torch/dispatch/kernel_call.h"
#include "torch/session/arguments.h"
#include "torch/session/state.h"

namespace remint {

class OpCall final : private ProgramOp {
 public:
  explicit OpCall(SessionState& state) : state_(state), arguments_(state) {}

  // Runs `call`, whose arguments are the last on the stack. Throws OutOfMemory, with no lock left, if the
  // arguments do not fit. The object is used again for the next call: its vectors keep their memory.
  void run(const KernelCall& call, const Operator& op, torch::jit::Stack* stack);

  // Calls that the kernel of the op that is running makes, where they are seen (custom ops).
  // Whether `storage` is among the arguments.
  bool touches(const c10::StorageImpl* storage);
  // The kernel reads something that is not among its arguments: nothing says when that changes, so it cannot
  // run again.
  void note_hidden_input() { hidden_input_ = true; }

  // The time that the kernel took last, and when it ended.
  Nanoseconds kernel_started() const { return started_; }
  Nanoseconds kernel_ended() const { return ended_; }

 private:
  // A storage that the op made, and which of all returned tensors is on it.
  struct Fresh {
    c10::StorageImpl* storage;
    std::uint32_t returned;
  };

  // ProgramOp.
  void describe(OpDescription& description) override;
  void ready(OpDescription& description) override;
  void run(bool last_try) override;
  bool undo() override;
  void describe_result(OpDescription& description, std::vector<BlockId>& blocks) override;
  bool failed(OpDescription& description, std::vector<BlockId>& blocks) override;

  bool prepare_retry();
  void write_recipe(OpDescription& description);
  void copy_arguments();
  void complete_recipe();
  void drop_recipe();
  void find_fresh();
  void describe_fresh(OpDescription& description, std::vector<BlockId>& blocks);
  void observe_arguments();
  void observe_ran(Nanoseconds cost);
  void keep_running(const std::vector<BlockId>& outputs);
  void adopt_outputs();
  void adopt_written();
  Nanoseconds cost_of_call();
  Nanoseconds cost_on_stream();
  void order_arguments();
  void call_kernel();
  void call_kernel_softly();
  bool writes_value(const Arguments::Touched& touched) const;

  static constexpr std::uint64_t kNoRecipe = ~std::uint64_t{0};

  SessionState& state_;
  const KernelCall* call_ = nullptr;
  const Operator* op_ = nullptr;
  torch::jit::Stack* stack_ = nullptr;
  std::size_t first_ = 0;
  std::size_t running_mark_ = 0;
  Arguments arguments_;
  OpDescription description_;
  std::vector<ValueId> outputs_;
  std::vector<Fresh> fresh_;
  std::size_t num_written_ = 0;  // outputs that are written arguments; fresh ones follow
  bool hidden_input_ = false;
  bool opaque_ = false;     // something that is not a plain tensor came out
  bool observing_ = false;  // the op at hand is in `observed_`
  std::uint64_t recipe_ = kNoRecipe;
  RecipeForm form_;  // of the recipe
  std::uint64_t signature_ = 0;
  CostEstimates::Estimate* estimate_ = nullptr;
  Nanoseconds started_ = 0;
  Nanoseconds ended_ = 0;
  Nanoseconds elsewhere_ = 0;  // spent in searches while the kernel ran, and in collectives
  ObservedOp observed_;

  // What a retry needs.
  bool prepared_ = false;
  bool can_retry_ = false;
  torch::jit::Stack saved_arguments_;
  // Batch norm may write its running statistics before it asks for memory the last time.
  std::vector<std::pair<c10::StorageImpl*, c10::DataPtr>> saved_statistics_;
  at::Generator generator_;
  std::unique_ptr<RandomState> random_;
};

}  // namespace remint
