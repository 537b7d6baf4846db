// The simulator: the engine on the null device, which runs nothing and only asks for the memory an op would
// ask for.
#pragma once

#include <functional>
#include <vector>

#include "engine/engine.h"
#include "simulator/trace_columns.h"

namespace remint {

struct SimulationOptions {
  Bytes budget = 0;
  bool arena = false;  // otherwise ideal memory, with the semantics of DTR's reference
  Bytes alignment = kCpuAlignment;
  bool placed = true;   // on the arena: blocks have addresses. Otherwise their lifetimes are noted (Unplaced)
  bool ghosts = false;  // in-place ops take over the bytes they write; otherwise they make a copy
  bool foresees = true;  // a policy that asks for the future is told
  // What it took to have the value of each tensor back in an earlier run, for a policy that is told the
  // future. Not owned.
  const std::vector<Nanoseconds>* returns = nullptr;
  EngineOptions engine;
};

class Simulation final : private Device {
 public:
  explicit Simulation(const SimulationOptions& options);

  // Runs one event after the other; throws OutOfMemory or Thrash. Events of a trace are run in order, each
  // once. The columns may be those of a longer trace than before, of which this is a part.
  void step(const TraceColumns& trace, std::size_t event);
  // Makes everything that the program still holds resident.
  void finish(const TraceColumns& trace);

  bool resident(std::int32_t tensor) const;
  // Where a tensor is; kNone if it is not resident, or has no block.
  BlockId block_of(std::int32_t tensor) const;
  // The engine's name for a tensor.
  ValueId value_of(std::int32_t tensor) const;
  // The same for the value that the tensor had when it was made; kNone if its record is gone.
  ValueId first_value_of(std::int32_t tensor) const;
  Engine& engine() { return engine_; }

  // Called with the number of the event while its kernel runs, for the first time or again: a test can make
  // requests of the engine there, as a custom op does that calls .numpy() on a tensor.
  void set_kernel_hook(std::function<void(std::size_t event)> hook) { kernel_hook_ = std::move(hook); }

  // What an op of the program does beside its kernel, for tests of the op driver: each is called with the
  // number of the event, and an empty one does nothing. See ProgramOp.
  struct OpHooks {
    std::function<void(std::size_t event)> ready;  // may throw
    std::function<bool(std::size_t event)> undo;   // false: what a try left behind cannot be undone
    std::function<bool(std::size_t event)>
        failed;  // true: the kernel threw and wrote what it writes in place
  };
  void set_op_hooks(OpHooks hooks) { op_hooks_ = std::move(hooks); }

 private:
  // What the program calls one storage, whatever value it has at the time.
  struct Handle {
    ValueId value = kNone;  // the storage's root after an in-place op
    std::uint32_t version = 0;
  };
  struct Tensor {
    std::uint32_t handle = 0;
    std::uint32_t version = 0;
    ValueId value = kNone;
    BlockId raw = kNone;  // where it is, while it has no record
  };
  // An op of the trace, for the op driver.
  class SimulatedOp;

  void foresee();
  std::vector<std::vector<std::int32_t>> needed_before_writes() const;
  ValueId recorded_value_of(std::int32_t tensor);
  void add_tensor(ValueId value, BlockId raw);
  void add_constant(std::int32_t tensor);
  void release(std::int32_t tensor);
  void run_op(std::size_t event);
  // Whether the op writes all of that argument, and needs nothing of what was there.
  bool overwrites(std::size_t event, std::int64_t argument) const;
  void rename_written(std::size_t event);
  void request_memory(std::size_t event, bool again, std::vector<BlockId>& blocks);
  void run(const Op& op, std::vector<BlockId>& blocks) override { request_memory(op.tag, true, blocks); }

  const SimulationOptions options_;
  const TraceColumns* trace_ = nullptr;
  Engine engine_;
  std::vector<Handle> handles_;
  std::vector<Tensor> tensors_;
  std::function<void(std::size_t event)> kernel_hook_;
  std::unique_ptr<Foresight> foresight_;  // where the policy asks for it
  std::size_t foreseen_ = 0;              // events
  std::size_t num_ops_ = 0;
  OpHooks op_hooks_;
  // Of the op at hand; members, so that their memory is used again.
  OpDescription description_;
  std::vector<ValueId> outputs_;
  std::vector<BlockId> blocks_;          // of all outputs, those without a record included
  std::vector<BlockId> requests_;        // in order
  std::vector<char> written_;            // per argument
  std::vector<std::uint32_t> input_of_;  // per argument: its place among the inputs
};

}  // namespace remint
