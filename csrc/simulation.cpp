#include "simulation.h"

#include <stdexcept>

namespace remint {
namespace {

std::unique_ptr<Memory> make_memory(const SimulationOptions& options) {
  if (options.arena) return std::make_unique<Arena>(options.budget, options.alignment);
  return std::make_unique<Ideal>(options.budget);
}

EngineOptions engine_options(const SimulationOptions& options) {
  EngineOptions result = options;
  result.reference = !options.arena;
  result.partition = options.partition && options.arena;
  result.moving = options.moving && options.arena;
  return result;
}

}  // namespace

Simulation::Simulation(const SimulationOptions& options)
    : options_(options),
      engine_(engine_options(options), make_memory(options), options.policy, options, *this) {
  if (options.ghosts && !options.arena) {
    throw std::invalid_argument(
        "in-place without a copy needs an arena: ideal memory follows DTR's reference");
  }
}

ValueId Simulation::value_of(std::int32_t id) const {
  const Tensor& tensor = tensors_[id];
  const Handle& handle = handles_[tensor.handle];
  return tensor.version == handle.version ? tensor.value : handle.value;
}

bool Simulation::resident(std::int32_t tensor) const {
  const ValueId value = value_of(tensor);
  return engine_.records().storage(engine_.records().value(value).storage).resident;
}

void Simulation::step(const TraceColumns& trace, std::size_t event) {
  trace_ = &trace;
  switch (trace.kind(event)) {
    case EventKind::kConstant: {
      const std::int64_t tensor = trace.out_offsets[event];
      const ValueId value = engine_.add_constant(trace.nbytes[tensor], static_cast<std::uint64_t>(tensor));
      handles_.push_back({value, 0});
      tensors_.push_back({static_cast<std::uint32_t>(handles_.size() - 1), 0, value});
      break;
    }
    case EventKind::kCall:
    case EventKind::kView:
    case EventKind::kMutate:
      run_op(event);
      break;
    case EventKind::kRelease:
      engine_.release(value_of(trace.args[trace.arg_offsets[event]]));
      break;
    case EventKind::kMark:
      engine_.mark(event);
      break;
  }
  if (options_.check) engine_.check();
}

void Simulation::run_op(std::size_t event) {
  const TraceColumns& trace = *trace_;
  const bool mutates = trace.kind(event) == EventKind::kMutate;
  const std::int64_t first_arg = trace.arg_offsets[event];
  description_.clear();
  description_.cost = trace.nanoseconds[event];
  description_.tag = event;
  for (std::int64_t a = first_arg; a < trace.arg_offsets[event + 1]; ++a) {
    description_.inputs.push_back(value_of(trace.args[a]));
  }
  for (std::int64_t t = trace.out_offsets[event]; t < trace.out_offsets[event + 1]; ++t) {
    Output output;
    output.nbytes = trace.nbytes[t];
    output.tag = static_cast<std::uint64_t>(t);
    if (trace.aliases[t] >= 0) {
      const std::uint32_t alias = static_cast<std::uint32_t>(trace.aliases[t]);
      if (!mutates) {
        output.alias = alias;
      } else if (options_.ghosts) {
        output.takes_over = alias;
      }
    }
    description_.outputs.push_back(output);
  }
  engine_.run(description_, outputs_);
  for (std::size_t k = 0; k < outputs_.size(); ++k) {
    const Output& output = description_.outputs[k];
    std::uint32_t handle;
    if (output.alias != kNone) {
      handle = tensors_[trace.args[first_arg + output.alias]].handle;
    } else if (output.takes_over != kNone) {
      // All names of these bytes now mean what was written.
      handle = tensors_[trace.args[first_arg + output.takes_over]].handle;
      handles_[handle].value = outputs_[k];
      ++handles_[handle].version;
    } else {
      handle = static_cast<std::uint32_t>(handles_.size());
      handles_.push_back({outputs_[k], 0});
    }
    tensors_.push_back({handle, handles_[handle].version, outputs_[k]});
  }
}

// The null device: only the memory requests of the op, in order.
void Simulation::run(Engine& engine, const Op& op, std::vector<BlockId>& blocks) {
  const TraceColumns& trace = *trace_;
  const std::size_t event = op.tag;
  const bool mutates = trace.kind(event) == EventKind::kMutate;
  const std::int64_t first = trace.out_offsets[event];
  blocks.resize(static_cast<std::size_t>(trace.out_offsets[event + 1] - first), kNone);
  const std::int64_t begin = trace.request_offsets[event];
  const std::int64_t end = trace.request_offsets[event + 1];
  requests_.clear();
  for (std::int64_t r = begin; r < end; ++r) {
    if (trace.request_bytes[r] < 0) {
      engine.free(requests_[static_cast<std::size_t>(-(trace.request_bytes[r] + 1))]);
      continue;
    }
    const BlockId block = engine.allocate(trace.request_bytes[r]);
    requests_.push_back(block);
    if (trace.request_outputs[r] >= 0) blocks[static_cast<std::size_t>(trace.request_outputs[r])] = block;
  }
  // Whatever no request was recorded for.
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    const bool fresh = trace.aliases[first + k] < 0 || (mutates && !options_.ghosts);
    if (fresh && blocks[k] == kNone) blocks[k] = engine.allocate(trace.nbytes[first + k]);
  }
}

void Simulation::finish(const TraceColumns& trace) {
  trace_ = &trace;
  for (std::size_t i = 0; i < trace.num_held; ++i) engine_.pin(value_of(trace.held[i]));
  if (options_.check) engine_.check();
}

}  // namespace remint
