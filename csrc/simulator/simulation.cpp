#include "simulator/simulation.h"

#include <algorithm>
#include <stdexcept>

#include "memory/unplaced.h"

namespace remint {
namespace {

std::unique_ptr<Memory> make_memory(const SimulationOptions& options) {
  if (!options.placed) return std::make_unique<Unplaced>(options.budget, options.alignment);
  if (options.arena) return std::make_unique<Arena>(options.budget, options.alignment);
  return std::make_unique<Ideal>(options.budget);
}

}  // namespace

Simulation::Simulation(const SimulationOptions& options)
    : options_(options), engine_(options.engine, make_memory(options), *this) {
  if (options.ghosts && !options.arena) {
    throw std::invalid_argument(
        "in-place without a copy needs an arena: ideal memory follows DTR's reference");
  }
  if (options.engine.tier.bytes > 0 && !options.arena) {
    throw std::invalid_argument("offloading needs an arena: ideal memory follows DTR's reference");
  }
}

ValueId Simulation::value_of(std::int32_t id) const {
  const Tensor& tensor = tensors_[id];
  const Handle& handle = handles_[tensor.handle];
  return tensor.version == handle.version ? tensor.value : handle.value;
}

ValueId Simulation::first_value_of(std::int32_t id) const {
  const Records& records = engine_.records();
  const ValueId value = tensors_[id].value;
  if (value == kNone) return kNone;
  // The record may be gone, and another one in its place.
  const StorageId storage = records.value(value).storage;
  if (storage == kNone || !records.storage(storage).in_use()) return kNone;
  for (ValueId each : records.storage(storage).values) {
    if (each == value && records.value(each).tag == static_cast<std::uint64_t>(id)) return value;
  }
  return kNone;
}

// The value of an argument. As in a real run, a raw block gets a record when an op first touches it.
ValueId Simulation::recorded_value_of(std::int32_t id) {
  Tensor& tensor = tensors_[id];
  if (tensor.raw != kNone) {
    tensor.value = engine_.adopt_constant(tensor.raw, trace_->nbytes[id], static_cast<std::uint64_t>(id));
    handles_[tensor.handle].value = tensor.value;
    tensor.raw = kNone;
  }
  return value_of(id);
}

void Simulation::add_tensor(ValueId value, BlockId raw) {
  handles_.push_back({value, 0});
  tensors_.push_back({static_cast<std::uint32_t>(handles_.size() - 1), 0, value, raw});
}

void Simulation::add_constant(std::int32_t id) {
  const std::int32_t where = trace_->aliases[id];
  const auto tag = static_cast<std::uint64_t>(id);
  if (where == kRaw && options_.arena) {
    add_tensor(kNone, engine_.allocate_raw(trace_->nbytes[id]));
  } else if (where == kElsewhere) {
    add_tensor(options_.arena ? engine_.adopt_constant(kNone, 0, tag) : engine_.add_constant(0, tag), kNone);
  } else {
    add_tensor(engine_.add_constant(trace_->nbytes[id], tag), kNone);
  }
}

void Simulation::release(std::int32_t id) {
  const Tensor& tensor = tensors_[id];
  if (tensor.raw != kNone) {
    engine_.free_raw(tensor.raw, trace_->nbytes[id]);
    return;
  }
  const ValueId value = value_of(id);
  const StorageId storage = engine_.records().value(value).storage;
  engine_.release(value);
  // Its bytes count nothing here, but they stay in memory as long as a recipe reads them.
  if (trace_->aliases[id] == kElsewhere && options_.arena && engine_.records().storage(storage).in_use()) {
    engine_.retire(value, trace_->nbytes[id]);
  }
}

bool Simulation::resident(std::int32_t tensor) const {
  if (tensors_[tensor].raw != kNone) return true;
  const ValueId value = value_of(tensor);
  return engine_.records().storage(engine_.records().value(value).storage).has_bytes();
}

BlockId Simulation::block_of(std::int32_t tensor) const {
  if (tensors_[tensor].raw != kNone) return tensors_[tensor].raw;
  const Storage& s = engine_.records().storage(engine_.records().value(value_of(tensor)).storage);
  return s.has_bytes() ? s.block : kNone;
}

void Simulation::step(const TraceColumns& trace, std::size_t event) {
  trace_ = &trace;
  if (options_.foresees && options_.engine.policy == "clairvoyant") {
    if (foreseen_ != trace.num_events) foresee();
    foresight_->move_to(static_cast<Foresight::Position>(event));
  }
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
      const ValueId value = recorded_value_of(trace.args[trace.arg_offsets[event]]);
      // What stays where it is must be there.
      const bool fixes = trace.kind(event) == EventKind::kFix;
      if (!engine_.pinned(value) || (fixes && !engine_.defined(value))) engine_.pin(value);
      if (fixes) engine_.fix(value);
      break;
    }
    case EventKind::kMaterialize:
      if (options_.arena) engine_.materialize(recorded_value_of(trace.args[trace.arg_offsets[event]]));
      break;
    case EventKind::kMark:
      engine_.mark(event);
      break;
  }
  if (options_.engine.check) engine_.check();
}

// Before a source is written, what the program still has of the values computed from it is made resident and
// pinned. By event: these tensors.
std::vector<std::vector<std::int32_t>> Simulation::needed_before_writes() const {
  const TraceColumns& trace = *trace_;
  const std::size_t never = trace.num_events;
  std::vector<std::int32_t> first_name(trace.num_tensors);
  std::vector<char> stays(trace.num_tensors, 0);  // by first name: it has no recipe
  std::vector<std::size_t> released(trace.num_tensors, never);
  std::vector<std::vector<std::size_t>> writes(trace.num_tensors);  // by first name
  for (std::size_t event = 0; event < trace.num_events; ++event) {
    const EventKind kind = trace.kind(event);
    const std::int64_t first_arg = trace.arg_offsets[event];
    auto name_of = [&](std::int64_t a) { return first_name[trace.args[a]]; };
    for (std::int64_t a = first_arg; a < trace.arg_offsets[event + 1]; ++a) {
      if (kind == EventKind::kRelease) released[trace.args[a]] = event;
      if (kind == EventKind::kPin || kind == EventKind::kFix) stays[name_of(a)] = 1;
      if (trace.effects[a] != kReads) writes[name_of(a)].push_back(event);
    }
    for (std::int64_t t = trace.out_offsets[event]; t < trace.out_offsets[event + 1]; ++t) {
      const std::int32_t alias = trace.aliases[t];
      const bool mutates = alias >= 0 && kind == EventKind::kMutate;
      first_name[t] = alias >= 0 ? name_of(first_arg + alias) : static_cast<std::int32_t>(t);
      if (kind == EventKind::kConstant || alias == kOnce || alias == kRaw) stays[t] = 1;
      if (mutates) writes[first_name[t]].push_back(event);
    }
  }
  // By tensor: the first write after it was made of a source that it was computed from.
  std::vector<std::size_t> ends(trace.num_tensors, never);
  std::vector<std::vector<std::int32_t>> needed(trace.num_events);
  for (std::size_t event = 0; event < trace.num_events; ++event) {
    std::size_t end = never;
    for (std::int64_t a = trace.arg_offsets[event]; a < trace.arg_offsets[event + 1]; ++a) {
      const std::int32_t name = first_name[trace.args[a]];
      if (stays[name]) {
        auto next = std::upper_bound(writes[name].begin(), writes[name].end(), event);
        if (next != writes[name].end()) end = std::min(end, *next);
      }
      // What was needed before an earlier write has no recipe since.
      if (ends[trace.args[a]] > event) end = std::min(end, ends[trace.args[a]]);
    }
    for (std::int64_t t = trace.out_offsets[event]; t < trace.out_offsets[event + 1]; ++t) {
      ends[t] = end;
      if (end < released[t]) needed[end].push_back(static_cast<std::int32_t>(t));
    }
  }
  return needed;
}

// Every value of the trace is used where an event names it, and at the end if it is held.
void Simulation::foresee() {
  std::vector<Foresight::Use> uses;
  std::vector<Nanoseconds> starts(trace_->num_events + 1, 0);
  // A name of bytes that were written since means what was written last. By tensor: the first name of its
  // bytes, and what had been written last when it got its name. By first name: what was written last.
  std::vector<std::int32_t> first_name(trace_->num_tensors);
  std::vector<std::int32_t> written_before(trace_->num_tensors, -1);
  std::vector<std::int32_t> written_last(trace_->num_tensors, -1);
  auto use = [&](std::int32_t tensor, std::size_t event) {
    const std::int32_t last = written_last[first_name[tensor]];
    const std::int32_t meant = last == written_before[tensor] ? tensor : last;
    uses.push_back({static_cast<std::uint64_t>(meant), static_cast<Foresight::Position>(event)});
  };
  const std::vector<std::vector<std::int32_t>> needed = needed_before_writes();
  for (std::size_t event = 0; event < trace_->num_events; ++event) {
    starts[event + 1] = starts[event] + trace_->nanoseconds[event];
    for (std::int32_t tensor : needed[event]) use(tensor, event);
    const std::int64_t first_arg = trace_->arg_offsets[event];
    if (trace_->kind(event) != EventKind::kRelease) {
      for (std::int64_t a = first_arg; a < trace_->arg_offsets[event + 1]; ++a) use(trace_->args[a], event);
    }
    const bool mutates = trace_->kind(event) == EventKind::kMutate;
    for (std::int64_t t = trace_->out_offsets[event]; t < trace_->out_offsets[event + 1]; ++t) {
      const auto tensor = static_cast<std::int32_t>(t);
      const bool shares = trace_->aliases[t] >= 0 && (!mutates || options_.ghosts);
      first_name[t] = shares ? first_name[trace_->args[first_arg + trace_->aliases[t]]] : tensor;
      if (shares && mutates) written_last[first_name[t]] = tensor;
      written_before[t] = written_last[first_name[t]];
    }
  }
  for (std::size_t i = 0; i < trace_->num_held; ++i) use(trace_->held[i], trace_->num_events);
  foresight_ = std::make_unique<Foresight>(uses, std::move(starts), trace_->num_tensors);
  foresight_->remember(options_.returns);
  foresight_->look_at(options_.looks);
  foreseen_ = trace_->num_events;
  engine_.foresee(foresight_.get());
}

class Simulation::SimulatedOp final : public ProgramOp {
 public:
  SimulatedOp(Simulation& simulation, std::size_t event) : simulation_(simulation), event_(event) {}

  void describe(OpDescription& description) override;

  void run(bool) override {
    simulation_.blocks_.clear();
    simulation_.request_memory(event_, false, simulation_.blocks_);
  }

  void ready(OpDescription&) override {
    if (simulation_.op_hooks_.ready) simulation_.op_hooks_.ready(event_);
  }

  bool undo() override { return !simulation_.op_hooks_.undo || simulation_.op_hooks_.undo(event_); }

  // What the kernel made is lost; what it wrote in place is as it left it.
  bool failed(OpDescription& description, std::vector<BlockId>& blocks) override {
    if (!simulation_.op_hooks_.failed || !simulation_.op_hooks_.failed(event_)) return false;
    std::vector<Output>& outputs = description.outputs;
    outputs.erase(
        std::remove_if(outputs.begin(), outputs.end(),
                       [](const Output& o) { return o.takes_over == kNone && o.replaces == kNone; }),
        outputs.end());
    for (Output& output : outputs) output.once = true;
    blocks.assign(outputs.size(), kNone);
    return !outputs.empty();
  }

  void describe_result(OpDescription&, std::vector<BlockId>& blocks) override {
    const TraceColumns& trace = *simulation_.trace_;
    const std::int64_t first = trace.out_offsets[event_];
    for (std::size_t k = 0; k < simulation_.blocks_.size(); ++k) {
      if (trace.aliases[first + static_cast<std::int64_t>(k)] == kRaw) {
        simulation_.engine_.make_raw(simulation_.blocks_[k]);
      } else {
        blocks.push_back(simulation_.blocks_[k]);
      }
    }
  }

 private:
  Simulation& simulation_;
  const std::size_t event_;
};

void Simulation::SimulatedOp::describe(OpDescription& description) {
  const TraceColumns& trace = *simulation_.trace_;
  const SimulationOptions& options = simulation_.options_;
  std::vector<char>& written = simulation_.written_;
  std::vector<std::uint32_t>& input_of = simulation_.input_of_;
  const bool mutates = trace.kind(event_) == EventKind::kMutate;
  const std::int64_t first_arg = trace.arg_offsets[event_];
  const std::int64_t num_args = trace.arg_offsets[event_ + 1] - first_arg;
  description.cost = description.expected_cost = trace.nanoseconds[event_];
  description.tag = event_;
  written.assign(static_cast<std::size_t>(num_args), 0);
  input_of.assign(static_cast<std::size_t>(num_args), kNone);
  for (std::int64_t a = 0; a < num_args; ++a) {
    const ValueId value = simulation_.recorded_value_of(trace.args[first_arg + a]);
    description.acquired.push_back(value);
    const std::uint8_t effect = trace.effects[first_arg + a];
    written[a] = effect == kOverwrites ? simulation_.overwrites(event_, a) : effect != kReads;
    if (written[a]) continue;
    input_of[a] = static_cast<std::uint32_t>(description.inputs.size());
    description.inputs.push_back(value);
  }
  bool fresh = false;
  bool others = false;
  for (std::int64_t t = trace.out_offsets[event_]; t < trace.out_offsets[event_ + 1]; ++t) {
    const std::int32_t alias = trace.aliases[t];
    if (alias == kRaw && options.arena) continue;
    Output output;
    output.nbytes = trace.nbytes[t];
    output.tag = static_cast<std::uint64_t>(t);
    output.once = alias == kOnce || alias == kRaw;
    fresh = fresh || alias == kFresh;
    others = others || output.once || (mutates && alias >= 0);
    if (alias >= 0 && !mutates) {
      output.alias = input_of[alias];
    } else if (alias >= 0 && options.ghosts) {
      written[alias] = 1;
      if (input_of[alias] != kNone) {
        output.takes_over = input_of[alias];
      } else {
        output.replaces = description.acquired[alias];
      }
    }
    if (output.takes_over == kNone && output.replaces == kNone) description.expected_bytes += output.nbytes;
    description.outputs.push_back(output);
  }
  // Side effects alone, those of batch norm, can be undone; an op without a recipe is not tried again.
  description.writes = (mutates && !fresh) || others;
  if (!options.ghosts) return;
  for (std::int64_t a = 0; a < num_args; ++a) {
    if (written[a]) description.written.push_back(description.acquired[a]);
  }
}

// An op that reads the same bytes through another argument needs what was there before.
bool Simulation::overwrites(std::size_t event, std::int64_t argument) const {
  const TraceColumns& trace = *trace_;
  const std::int64_t first = trace.arg_offsets[event];
  if (trace.effects[first + argument] != kOverwrites) return false;
  const std::uint32_t handle = tensors_[trace.args[first + argument]].handle;
  for (std::int64_t a = first; a < trace.arg_offsets[event + 1]; ++a) {
    if (trace.effects[a] == kReads && tensors_[trace.args[a]].handle == handle) return false;
  }
  return true;
}

void Simulation::run_op(std::size_t event) {
  const TraceColumns& trace = *trace_;
  const std::int64_t first_arg = trace.arg_offsets[event];
  SimulatedOp op(*this, event);
  engine_.prepare(num_ops_++);
  try {
    engine_.run(op, description_, outputs_);
  } catch (...) {
    if (!outputs_.empty()) rename_written(event);
    throw;
  }
  for (std::int64_t t = trace.out_offsets[event]; t < trace.out_offsets[event + 1]; ++t) {
    const std::size_t k = static_cast<std::size_t>(t - trace.out_offsets[event]);
    const std::int32_t alias = trace.aliases[t];
    const bool shares = alias >= 0 && (trace.kind(event) != EventKind::kMutate || options_.ghosts);
    if (alias == kRaw && options_.arena) {
      add_tensor(kNone, blocks_[k]);
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

// The op failed after it wrote in place: all names of the bytes mean what is there now.
void Simulation::rename_written(std::size_t event) {
  const TraceColumns& trace = *trace_;
  std::size_t k = 0;
  for (std::int64_t t = trace.out_offsets[event]; t < trace.out_offsets[event + 1]; ++t) {
    if (trace.aliases[t] < 0) continue;
    Handle& handle = handles_[tensors_[trace.args[trace.arg_offsets[event] + trace.aliases[t]]].handle];
    handle = {outputs_[k++], handle.version + 1};
    // The tensor that the op would have made has no name.
    engine_.release(handle.value);
  }
}

// The null device: only the memory requests of the op, in order.
void Simulation::request_memory(std::size_t event, bool again, std::vector<BlockId>& blocks) {
  const TraceColumns& trace = *trace_;
  const bool mutates = trace.kind(event) == EventKind::kMutate;
  const std::int64_t first = trace.out_offsets[event];
  const std::size_t num_outputs = static_cast<std::size_t>(trace.out_offsets[event + 1] - first);
  if (kernel_hook_) kernel_hook_(event);
  blocks.resize(num_outputs, kNone);
  if (again && mutates && options_.ghosts) {
    // An output that overwrote another value gets a block of its own this time, before the op runs.
    for (std::size_t k = 0; k < num_outputs; ++k) {
      const std::int32_t alias = trace.aliases[first + k];
      if (alias >= 0 && overwrites(event, alias)) blocks[k] = engine_.allocate(trace.nbytes[first + k]);
    }
  }
  const std::int64_t begin = trace.request_offsets[event];
  const std::int64_t end = trace.request_offsets[event + 1];
  std::vector<BlockId>& requests = requests_;
  requests.clear();
  for (std::int64_t r = begin; r < end; ++r) {
    if (trace.request_bytes[r] < 0) {
      engine_.free(requests[static_cast<std::size_t>(-(trace.request_bytes[r] + 1))]);
      continue;
    }
    const BlockId block = engine_.allocate(trace.request_bytes[r]);
    requests.push_back(block);
    if (trace.request_outputs[r] >= 0) blocks[static_cast<std::size_t>(trace.request_outputs[r])] = block;
  }
  // Outputs that no request was recorded for.
  for (std::size_t k = 0; k < num_outputs; ++k) {
    const bool fresh = trace.aliases[first + k] < 0 || (mutates && !options_.ghosts);
    if (fresh && blocks[k] == kNone) blocks[k] = engine_.allocate(trace.nbytes[first + k]);
  }
}

void Simulation::finish(const TraceColumns& trace) {
  trace_ = &trace;
  // On the arena resident tensors are pinned first, as at the end of a real run, so that they are not evicted
  // for the others.
  auto pin_held = [&](bool only_defined) {
    for (std::size_t i = 0; i < trace.num_held; ++i) {
      if (tensors_[trace.held[i]].raw != kNone) continue;
      const ValueId value = value_of(trace.held[i]);
      // What is offloaded is safe where it is.
      if (engine_.defined(value) || (!only_defined && !engine_.is_kept(value))) engine_.pin(value);
    }
  };
  if (options_.arena) pin_held(true);
  pin_held(false);
  if (options_.engine.check) engine_.check();
}

}  // namespace remint
