// Ops of the program: run, acquire, commit. replay.cpp has the waiting and replaying, eviction.cpp the
// dropping of bytes.
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace remint {

Engine::Engine(const EngineOptions& options, std::unique_ptr<Memory> memory, const std::string& policy,
               const PolicyOptions& policy_options, Device& device)
    : options_(options),
      pool_(records_),
      memory_(std::move(memory)),
      policy_(make_policy(policy, policy_options, records_, pool_, dynamic_cast<Arena*>(memory_.get()),
                          options.moving)),
      device_(device) {}

ValueId Engine::add_constant(Bytes nbytes, std::uint64_t tag) {
  // Constants live long: they stand with what is expensive.
  end_ = options_.partition ? End::kHigh : End::kLow;
  return adopt_constant(allocate(nbytes), nbytes, tag);
}

ValueId Engine::adopt_constant(BlockId block, Bytes nbytes, std::uint64_t tag) {
  const StorageId id = records_.add_storage(nbytes);
  const ValueId value = records_.add_value(id, tag);
  Storage& s = records_.storage(id);
  s.constant = true;
  s.references = 1;
  s.last = clock_;
  s.resident = true;
  s.block = block;
  if (block != kNone) {
    memory_->own(block, id);
    forget_running(block);
  }
  records_.value(value).defined = true;
  note_block(BlockChange::kMade, id);
  pin_storage(id);
  note('C', tag);
  sample();
  return value;
}

void Engine::use_again(ValueId value, std::uint64_t tag) {
  const StorageId id = records_.value(value).storage;
  records_.wake(id);
  records_.value(value).tag = tag;
  Storage& s = records_.storage(id);
  s.references = 1;
  s.last = clock_;
  note_block(BlockChange::kMade, id);
  note_block(BlockChange::kPinned, id);
  note('C', tag);
  sample();
}

void Engine::drop_resting(ValueId value) {
  const StorageId id = records_.value(value).storage;
  records_.wake(id);
  std::vector<StorageId> orphans;  // none: a constant has no recipe
  records_.drop(id, orphans);
}

void Engine::run(const OpDescription& description, std::vector<ValueId>& outputs) {
  if (options_.reference) {
    run_reference(description, outputs);
    return;
  }
  Bytes nbytes = 0;
  for (const Output& output : description.outputs) {
    if (output.takes_over == kNone && output.replaces == kNone) nbytes += output.nbytes;
  }
  // Pinning what was made from one written input can pin another, and so can making the inputs (banishing
  // pins). Once no more are pinned, no recipe sees what is written.
  auto num_pinned = [&] {
    return std::count_if(description.written.begin(), description.written.end(),
                         [&](ValueId value) { return storage_of(value).pinned; });
  };
  for (auto pinned = num_pinned();; pinned = num_pinned()) {
    for (ValueId value : description.written) before_write(value);
    if (num_pinned() != pinned) continue;
    acquire(description.acquired, description.cost, nbytes);
    if (num_pinned() == pinned) break;
    abandon();
  }
  try {
    Op op;
    op.tag = description.tag;
    auto run = [&] {
      blocks_.clear();
      device_.run(*this, op, blocks_);
    };
    if (may_try_again(description.writes)) {
      run_with_room(run);
    } else {
      run();
    }
  } catch (...) {
    abandon();
    throw;
  }
  commit(description, blocks_, outputs);
}

void Engine::run_reference(const OpDescription& description, std::vector<ValueId>& outputs) {
  if (description.outputs.empty()) {
    // Such an op has nothing to wait for it, and nothing to make again.
    outputs.clear();
    acquire(description.inputs, 0, 0);
    clock_ += description.cost;
    statistics_.computed += description.cost;
    ++statistics_.num_ops;
    sample();
    abandon();
    return;
  }
  const OpId op = records_.add_op(description.cost, description.tag, description.inputs);
  add_outputs(op, description, outputs);
  Frame frame;
  frame.op = op;
  frame.target = outputs[0];
  frame.program = true;
  frames_.push_back(frame);
  drive();
  for (ValueId output : outputs) access(records_.value(output).storage);
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (description.outputs[k].once) pin_storage(records_.value(outputs[k]).storage);
  }
}

void Engine::acquire(const std::vector<ValueId>& inputs, Nanoseconds cost, Bytes nbytes) {
  if (!retired_.empty() && statistics_.num_ops >= next_settled_) settle();
  acquired_ = inputs;
  frames_.emplace_back();
  drive();
  note_need();
  place(cost, nbytes);
}

void Engine::commit(const OpDescription& description, const std::vector<BlockId>& blocks,
                    std::vector<ValueId>& outputs) {
  clock_ += description.cost;
  statistics_.computed += description.cost;
  ++statistics_.num_ops;
  // An op that only reads is never needed again.
  if (description.outputs.empty()) {
    outputs.clear();
    sample();
    abandon();
    return;
  }
  const OpId op = records_.add_op(description.cost, description.tag, description.inputs);
  add_outputs(op, description, outputs);
  const std::uint32_t depth = records_.op(op).depth;
  if (!outputs.empty()) note('C', records_.value(outputs[0]).tag);
  bool once = false;  // the op wrote over what cannot be made again: it can never run again
  for (const Output& output : description.outputs) {
    once = once || (output.takes_over != kNone && storage_of(description.inputs[output.takes_over]).pinned);
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const Output& output = description.outputs[k];
    Value& value = records_.value(outputs[k]);
    value.defined = true;
    if (output.takes_over != kNone || output.replaces != kNone) {
      ValueId from = output.replaces != kNone ? output.replaces : description.inputs[output.takes_over];
      // An op that writes the same bytes through two inputs has two outputs for them: the last one gets them.
      const StorageId written = records_.value(from).storage;
      for (std::size_t j = 0; j < k; ++j) {
        const std::uint32_t other = description.outputs[j].takes_over;
        if (other != kNone && records_.value(description.inputs[other]).storage == written) from = outputs[j];
      }
      // The program's tensors move along: they all see what was written.
      Storage& ghost = storage_of(from);
      records_.storage(value.storage).references += ghost.references;
      ghost.references = 0;
      take_over(from, outputs[k], output.replaces == kNone);
    } else if (output.alias == kNone) {
      make_resident(value.storage, blocks[k]);
    } else {
      policy_->touched(value.storage);
    }
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const StorageId id = records_.value(outputs[k]).storage;
    if ((once || description.outputs[k].once) && records_.storage(id).resident) pin_storage(id);
  }
  free_running_blocks();
  sample();
  abandon();
  for (ValueId output : outputs) access(records_.value(output).storage);
  if (depth > options_.max_depth) {
    for (ValueId output : outputs) pin_storage(records_.value(output).storage);
  }
  // The bytes of one output can have gone on to another one at once.
  for (ValueId output : outputs) {
    if (storage_of(output).references == 0) collect(records_.value(output).storage);
  }
}

void Engine::abandon() {
  free_running_blocks();
  std::vector<ValueId> acquired;
  acquired.swap(acquired_);
  for (ValueId value : acquired) unlock(records_.value(value).storage);
}

void Engine::add_outputs(OpId op, const OpDescription& description, std::vector<ValueId>& outputs) {
  outputs.clear();
  for (const Output& output : description.outputs) {
    const StorageId id = output.alias == kNone ? records_.add_storage(output.nbytes)
                                               : records_.value(description.inputs[output.alias]).storage;
    const Storage& s = records_.storage(id);
    const Nanoseconds cost = s.cost;
    outputs.push_back(records_.add_value(id, output.tag));
    ++records_.storage(id).references;
    records_.add_output(op, outputs.back(), output.takes_over);
    if (output.alias != kNone && !s.resident && s.cost > cost) {
      policy_->neighbourhood().costs_more(id, s.cost - cost);
    }
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (description.outputs[k].alias == kNone)
      policy_->neighbourhood().added(records_.value(outputs[k]).storage);
  }
}

// Cheap bytes gather at the low end, expensive ones at the high end. Cheap is what costs less per byte than
// the (geometric, byte-weighted) mean of what was placed so far: costs are measured, so no list of op names
// is needed.
void Engine::place(Nanoseconds cost, Bytes nbytes) {
  end_ = End::kLow;
  if (!options_.partition || nbytes <= 0) return;
  const double weight = static_cast<double>(nbytes);
  const double log_density = std::log2((static_cast<double>(cost) + 1.0) / weight);
  log_density_sum_ += weight * log_density;
  density_weight_ += weight;
  if (log_density > log_density_sum_ / density_weight_ - 1.0) end_ = End::kHigh;
}

void Engine::log_block(BlockChange change, StorageId id) {
  const Storage& s = records_.storage(id);
  const bool placed = s.block != kNone;
  const std::uint64_t tag = s.values.empty() ? 0 : records_.value(s.values[0]).tag;
  block_log_->push_back({clock_, change, id, tag, placed ? memory_->address(s.block) : 0,
                         placed ? memory_->footprint(s.nbytes) : 0});
}

void Engine::check() const {
  auto fail = [](const std::string& what) { throw std::logic_error("engine: " + what); };
  memory_->check();
  const auto* arena = dynamic_cast<const Arena*>(memory_.get());
  if (memory_->used() > memory_->budget()) fail("the budget is exceeded");
  Bytes resident = 0;
  Bytes pinned = 0;
  for (StorageId id = 0; id < records_.num_storage_slots(); ++id) {
    const Storage& s = records_.storage(id);
    if (!s.in_use) continue;
    // A block can be larger than its storage: a kernel may ask for more than the output needs. What is
    // elsewhere has none.
    if (s.resident && arena == nullptr) resident += s.nbytes;
    if (s.resident && arena != nullptr && s.block != kNone) resident += arena->block(s.block).nbytes;
    if (s.pinned) pinned += s.nbytes;
    if (s.locks != 0) fail("a lock was left behind");
    const bool candidate = s.resident && !s.pinned;
    if (candidate != pool_.contains(id)) fail("the pool is not what is resident and unpinned");
    for (ValueId value : s.values) {
      if (records_.value(value).defined && !s.resident) fail("a value without bytes is defined");
    }
  }
  // Blocks that belong to no storage: kept, or of an op that is running.
  if (arena != nullptr) {
    for (BlockId id = arena->first(); id != kNone; id = arena->block(id).next) {
      if (arena->block(id).owner == Arena::kRunning) resident += arena->block(id).nbytes;
    }
  }
  if (resident != memory_->used()) fail("resident bytes are miscounted");
  if (pinned != pinned_bytes_) fail("pinned bytes are miscounted");
}

}  // namespace remint
