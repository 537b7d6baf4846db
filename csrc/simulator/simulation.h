// The simulator: the engine on the null device, which runs nothing and only asks for the memory an op would
// ask for.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "simulator/trace_columns.h"

namespace remint {

// Everything a simulation can be told; the parts go to the memory, the policy and the engine.
struct SimulationOptions : PolicyOptions, EngineOptions {
  Bytes budget = 0;
  std::string policy = "dtr-eq";
  bool arena = false;  // otherwise ideal memory, with the semantics of DTR's reference
  Bytes alignment = 64;
  bool ghosts = false;  // in-place ops take over the bytes they write; otherwise they make a copy
  bool check = false;   // check the books after every event
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
  Engine& engine() { return engine_; }

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
    BlockId kept = kNone;  // where it is, while it has no record
  };

  ValueId value_of(std::int32_t tensor) const;
  ValueId known_value_of(std::int32_t tensor);
  void add_tensor(ValueId value, BlockId kept);
  void add_constant(std::int32_t tensor);
  void release(std::int32_t tensor);
  void describe(std::size_t event);
  void run_op(std::size_t event);
  void run(Engine& engine, const Op& op, std::vector<BlockId>& blocks) override;

  const SimulationOptions options_;
  const TraceColumns* trace_ = nullptr;
  Engine engine_;
  std::vector<Handle> handles_;
  std::vector<Tensor> tensors_;
  OpDescription description_;
  std::vector<ValueId> outputs_;
  std::vector<BlockId> requests_;
  std::vector<BlockId> kept_;            // blocks of the outputs of the op that ran
  std::vector<char> written_;            // per argument of the op at hand
  std::vector<std::uint32_t> input_of_;  // the same: its place among the inputs
};

}  // namespace remint
