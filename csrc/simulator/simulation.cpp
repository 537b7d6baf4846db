#include "simulator/simulation.h"

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

// The value of an argument. As in a real run, memory that nobody asked the engine about so far gets a record
// now.
ValueId Simulation::known_value_of(std::int32_t id) {
  Tensor& tensor = tensors_[id];
  if (tensor.kept != kNone) {
    tensor.value = engine_.adopt_constant(tensor.kept, trace_->nbytes[id], static_cast<std::uint64_t>(id));
    handles_[tensor.handle].value = tensor.value;
    tensor.kept = kNone;
  }
  return value_of(id);
}

void Simulation::add_tensor(ValueId value, BlockId kept) {
  handles_.push_back({value, 0});
  tensors_.push_back({static_cast<std::uint32_t>(handles_.size() - 1), 0, value, kept});
}

void Simulation::add_constant(std::int32_t id) {
  const std::int32_t where = trace_->aliases[id];
  const auto tag = static_cast<std::uint64_t>(id);
  if (where == kKept && options_.arena) {
    add_tensor(kNone, engine_.allocate_kept(trace_->nbytes[id]));
  } else if (where == kElsewhere) {
    add_tensor(options_.arena ? engine_.adopt_constant(kNone, 0, tag) : engine_.add_constant(0, tag), kNone);
  } else {
    add_tensor(engine_.add_constant(trace_->nbytes[id], tag), kNone);
  }
}

void Simulation::release(std::int32_t id) {
  const Tensor& tensor = tensors_[id];
  if (tensor.kept != kNone) {
    engine_.free_kept(tensor.kept, trace_->nbytes[id]);
    return;
  }
  const ValueId value = value_of(id);
  const StorageId storage = engine_.records().value(value).storage;
  engine_.release(value);
  // Its bytes count nothing here, but they are kept as long as a recipe reads them.
  if (trace_->aliases[id] == kElsewhere && options_.arena && engine_.records().storage(storage).in_use) {
    engine_.retire(value, trace_->nbytes[id]);
  }
}

bool Simulation::resident(std::int32_t tensor) const {
  if (tensors_[tensor].kept != kNone) return true;
  const ValueId value = value_of(tensor);
  return engine_.records().storage(engine_.records().value(value).storage).resident;
}

void Simulation::step(const TraceColumns& trace, std::size_t event) {
  trace_ = &trace;
  switch (trace.kind(event)) {
    case EventKind::kConstant:
      add_constant(static_cast<std::int32_t>(trace.out_offsets[event]));
      break;
    case EventKind::kCall:
    case EventKind::kView:
    case EventKind::kMutate:
      run_op(event);
      break;
    case EventKind::kRelease:
      release(trace.args[trace.arg_offsets[event]]);
      break;
    case EventKind::kPin:
    case EventKind::kFix: {
      const ValueId value = known_value_of(trace.args[trace.arg_offsets[event]]);
      if (!engine_.records().storage(engine_.records().value(value).storage).pinned) engine_.pin(value);
      if (trace.kind(event) == EventKind::kFix) engine_.fix(value);
      break;
    }
    case EventKind::kMaterialize:
      if (options_.arena) engine_.materialize(known_value_of(trace.args[trace.arg_offsets[event]]));
      break;
    case EventKind::kMark:
      engine_.mark(event);
      break;
  }
  if (options_.check) engine_.check();
}

void Simulation::describe(std::size_t event) {
  const TraceColumns& trace = *trace_;
  const bool mutates = trace.kind(event) == EventKind::kMutate;
  const std::int64_t first_arg = trace.arg_offsets[event];
  const std::int64_t num_args = trace.arg_offsets[event + 1] - first_arg;
  description_.clear();
  description_.cost = trace.nanoseconds[event];
  description_.tag = event;
  written_.assign(static_cast<std::size_t>(num_args), 0);
  input_of_.assign(static_cast<std::size_t>(num_args), kNone);
  for (std::int64_t a = 0; a < num_args; ++a) {
    const ValueId value = known_value_of(trace.args[first_arg + a]);
    description_.acquired.push_back(value);
    written_[a] = trace.effects[first_arg + a] != kReads;
    if (written_[a]) continue;
    input_of_[a] = static_cast<std::uint32_t>(description_.inputs.size());
    description_.inputs.push_back(value);
  }
  bool fresh = false;
  bool others = false;
  for (std::int64_t t = trace.out_offsets[event]; t < trace.out_offsets[event + 1]; ++t) {
    const std::int32_t alias = trace.aliases[t];
    if (alias == kKept && options_.arena) continue;
    Output output;
    output.nbytes = trace.nbytes[t];
    output.tag = static_cast<std::uint64_t>(t);
    output.once = alias == kOnce || alias == kKept;
    fresh = fresh || alias == kFresh;
    others = others || output.once || (mutates && alias >= 0);
    if (alias >= 0 && !mutates) {
      output.alias = input_of_[alias];
    } else if (alias >= 0 && options_.ghosts) {
      written_[alias] = 1;
      if (input_of_[alias] != kNone) {
        output.takes_over = input_of_[alias];
      } else {
        output.replaces = description_.acquired[alias];
      }
    }
    description_.outputs.push_back(output);
  }
  // Side effects alone, those of batch norm, can be undone; what has no recipe is not tried again.
  description_.writes = (mutates && !fresh) || others;
  if (!options_.ghosts) return;
  for (std::int64_t a = 0; a < num_args; ++a) {
    if (written_[a]) description_.written.push_back(description_.acquired[a]);
  }
}

void Simulation::run_op(std::size_t event) {
  const TraceColumns& trace = *trace_;
  const std::int64_t first_arg = trace.arg_offsets[event];
  describe(event);
  engine_.run(description_, outputs_);
  for (std::int64_t t = trace.out_offsets[event]; t < trace.out_offsets[event + 1]; ++t) {
    const std::size_t k = static_cast<std::size_t>(t - trace.out_offsets[event]);
    const std::int32_t alias = trace.aliases[t];
    const bool shares = alias >= 0 && (trace.kind(event) != EventKind::kMutate || options_.ghosts);
    if (alias == kKept && options_.arena) {
      add_tensor(kNone, kept_[k]);
    } else if (!shares) {
      add_tensor(outputs_[k], kNone);
    } else {
      const std::uint32_t handle = tensors_[trace.args[first_arg + alias]].handle;
      // All names of bytes that were written now mean what was written.
      if (trace.kind(event) == EventKind::kMutate)
        handles_[handle] = {outputs_[k], handles_[handle].version + 1};
      tensors_.push_back({handle, handles_[handle].version, outputs_[k], kNone});
    }
  }
}

// The null device: only the memory requests of the op, in order.
void Simulation::run(Engine& engine, const Op& op, std::vector<BlockId>& blocks) {
  const TraceColumns& trace = *trace_;
  const std::size_t event = op.tag;
  const bool mutates = trace.kind(event) == EventKind::kMutate;
  const bool again = !op.outputs.empty();
  const std::int64_t first = trace.out_offsets[event];
  const std::size_t num_outputs = static_cast<std::size_t>(trace.out_offsets[event + 1] - first);
  blocks.resize(num_outputs, kNone);
  if (again && mutates && options_.ghosts) {
    // What was written where something stood gets bytes of its own this time, before the op runs.
    for (std::size_t k = 0; k < num_outputs; ++k) {
      const std::int32_t alias = trace.aliases[first + k];
      if (alias >= 0 && trace.effects[trace.arg_offsets[event] + alias] == kOverwrites)
        blocks[k] = engine.allocate(trace.nbytes[first + k]);
    }
  }
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
  for (std::size_t k = 0; k < num_outputs; ++k) {
    const bool fresh = trace.aliases[first + k] < 0 || (mutates && !options_.ghosts);
    if (fresh && blocks[k] == kNone) blocks[k] = engine.allocate(trace.nbytes[first + k]);
  }
  if (again) return;
  kept_ = blocks;
  for (std::size_t k = 0; k < num_outputs; ++k) {
    if (trace.aliases[first + k] == kKept) engine.keep(blocks[k]);
  }
}

void Simulation::finish(const TraceColumns& trace) {
  trace_ = &trace;
  // On the arena what is there is pinned first, as at the end of a real run, so that it is not evicted for
  // the rest.
  auto pin_held = [&](bool only_defined) {
    for (std::size_t i = 0; i < trace.num_held; ++i) {
      if (tensors_[trace.held[i]].kept != kNone) continue;
      const ValueId value = value_of(trace.held[i]);
      if (!only_defined || engine_.defined(value)) engine_.pin(value);
    }
  };
  if (options_.arena) pin_held(true);
  pin_held(false);
  if (options_.check) engine_.check();
}

}  // namespace remint
