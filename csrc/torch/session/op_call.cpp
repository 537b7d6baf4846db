#include "torch/session/op_call.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "simulator/trace_columns.h"
#include "torch/dispatch/arguments.h"
#include "torch/dispatch/tags.h"
#include "torch/dispatch/threads.h"
#include "torch/session/learner.h"
#include "torch/session/owned_storages.h"

namespace remint {
namespace {

using Write = Operator::Write;

std::uint64_t signature_of(const Backend& backend, const Operator& op, const torch::jit::Stack& stack,
                           std::size_t first) {
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(&op);
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !backend.is_plain(tensor)) return;
      hash = combine(hash, static_cast<std::uint64_t>(tensor.scalar_type()));
      for (std::int64_t size : tensor.sizes()) hash = combine(hash, static_cast<std::uint64_t>(size));
    });
  }
  return hash;
}

}  // namespace

void OpCall::run(const KernelCall& call, const Operator& op, torch::jit::Stack* stack) {
  call_ = &call;
  op_ = &op;
  stack_ = stack;
  first_ = stack->size() - op.writes.size();
  running_mark_ = state_.owned->running_mark();
  prepared_ = false;
  hidden_input_ = false;
  observing_ = false;
  signature_ = signature_of(state_.backend, op, *stack, first_);
  estimate_ = &state_.costs.of(signature_);
  if (state_.learner != nullptr) state_.learner->before_op(op, signature_);
  // Whatever happens, nothing of this call is left behind.
  struct Cleanup {
    OpCall& call;
    ~Cleanup() {
      call.arguments_.locked();
      call.drop_recipe();
      call.form_.clear();
      call.saved_arguments_.clear();
      call.saved_statistics_.clear();
      call.random_.reset();
      call.state_.last_try = true;
    }
  } cleanup{*this};
  try {
    state_.engine->run(*this, description_, outputs_);
  } catch (...) {
    // The engine pinned what the kernel may have written.
    if (!outputs_.empty()) {
      recipe_ = kNoRecipe;
      adopt_written();
      for (const Arguments::Touched& touched : arguments_.touched()) {
        if (touched.output != kNone) touched.owned->reason = PinReason::kNoRecipe;
      }
    }
    arguments_.locked();
    state_.fix_late();
    state_.forget_dropped();
    throw;
  }
  adopt_outputs();
  state_.fix_late();
}

void OpCall::describe(OpDescription& description) {
  arguments_.look(*op_, *stack_, first_);
  if (call_->kernel != nullptr) arguments_.set_unrecordable();
  for (const Arguments::Touched& touched : arguments_.touched()) {
    if (touched.value == kNone) continue;
    description.acquired.push_back(touched.value);
    if (touched.write != Write::kNo) description.written.push_back(touched.value);
  }
  description.writes = op_->writes_any || !arguments_.recordable() || !op_->may_retry;
  const GivenCosts::Given* given = state_.given_costs.next();
  description.expected_cost = given != nullptr ? given->cost : estimate_->cost;
  description.expected_bytes = given != nullptr && given->nbytes >= 0 ? given->nbytes : estimate_->nbytes;
}

void OpCall::ready(OpDescription& description) {
  arguments_.locked();
  write_recipe(description);
  if (state_.order != nullptr) order_arguments();
}

// The current stream waits for what a budget did with the arguments on others.
void OpCall::order_arguments() {
  for (const Arguments::Touched& touched : arguments_.touched()) {
    const void* address = touched.storage->_mutable_data_ptr_no_checks().get();
    if (touched.write == Write::kNo) {
      state_.order->before_read(address, touched.storage->nbytes());
    } else {
      state_.order->before_write(address, touched.storage->nbytes());
    }
  }
}

// Runs the kernel. The driver tries it again after it has freed up memory, if nothing was written yet.
void OpCall::run(bool last_try) {
  state_.last_try = last_try || !prepare_retry();
  state_.observer->kernel_starts();
  clear_collective();
  const Nanoseconds elsewhere = state_.engine->statistics().searching + state_.collectives;
  struct InKernelNow {
    SessionState& state;
    explicit InKernelNow(SessionState& state) : state(state) { state.in_kernel = true; }
    ~InKernelNow() { state.in_kernel = false; }
  } in_kernel(state_);
  const bool timed = state_.timer != nullptr && estimate_->count < KernelTimer::kCalls;
  const std::uint64_t num_searches = state_.engine->statistics().num_searches;
  if (timed) state_.timer->start();
  started_ = state_.backend.now();
  if (state_.options.soft) [[unlikely]]
    call_kernel_softly();
  else
    call_kernel();
  ended_ = state_.backend.now();
  if (timed) {
    // Memory that was freed up meanwhile may have been moved on the same stream.
    if (state_.engine->statistics().num_searches != num_searches) state_.timer->give_up();
    state_.timer->stop([estimate = estimate_](Nanoseconds cost) { CostEstimates::update(*estimate, cost); });
  }
  elsewhere_ = state_.engine->statistics().searching + state_.collectives - elsewhere;
  state_.in_kernels += ended_ - started_ - elsewhere_;
}

void OpCall::call_kernel() {
  if (op_->may_retry) {
    (*call_)(stack_);
    return;
  }
  // The calls of a custom op are seen: it may read tensors that are not its arguments.
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard seen(local.included_, local.excluded_.remove(kKey));
  (*call_)(stack_);
}

// The kernel takes its memory from the device's own allocator. If that has none left though it asked, all
// that can be evicted is, and the kernel runs once more.
void OpCall::call_kernel_softly() {
  if (state_.order != nullptr && op_->name == "aten::record_stream") {
    for (const Arguments::Touched& touched : arguments_.touched()) {
      state_.order->record_stream(touched.storage->_mutable_data_ptr_no_checks().get(),
                                  touched.storage->nbytes(), stack_->back().toStream());
    }
  }
  const bool again = !op_->writes_any && op_->may_retry && arguments_.recordable() && prepare_retry();
  try {
    call_kernel();
  } catch (const c10::OutOfMemoryError&) {
    if (!again || !undo()) throw;
    state_.engine->evict_all();
    state_.backend.empty_cache();
    call_kernel();
  }
  take_results(state_, *stack_, first_);
}

// Saves what the kernel may use up or change before it runs out of memory. False: it cannot be saved.
bool OpCall::prepare_retry() {
  if (prepared_) return can_retry_;
  prepared_ = true;
  can_retry_ = true;
  if (op_->seeded) {
    generator_ = generator_of(state_.backend, *op_, *stack_, first_);
    random_ = state_.backend.save_random(generator_);
    can_retry_ = random_ != nullptr;
  }
  if (!can_retry_) return false;
  saved_arguments_.assign(stack_->begin() + static_cast<std::ptrdiff_t>(first_), stack_->end());
  for (const Arguments::Touched& touched : arguments_.touched()) {
    if (touched.write != Write::kSideEffect) continue;
    c10::DataPtr copy = state_.backend.ordinary_allocator()->allocate(touched.storage->nbytes());
    state_.backend.copy(copy.get(), touched.storage->_mutable_data_ptr_no_checks().get(),
                        touched.storage->nbytes());
    saved_statistics_.emplace_back(touched.storage, std::move(copy));
  }
  return true;
}

bool OpCall::touches(const c10::StorageImpl* storage) {
  const std::vector<Arguments::Touched>& all = arguments_.touched();
  return std::any_of(all.begin(), all.end(), [&](const auto& touched) { return touched.storage == storage; });
}

bool OpCall::undo() {
  keep_running({});
  if (!can_retry_ || collective_noted()) return false;
  for (const auto& [storage, bytes] : saved_statistics_) {
    state_.backend.copy(storage->_mutable_data_ptr_no_checks().get(), bytes.get(), storage->nbytes());
  }
  if (random_ != nullptr) state_.backend.restore_random(*random_, generator_);
  stack_->resize(std::min(stack_->size(), first_));
  stack_->insert(stack_->end(), saved_arguments_.begin(), saved_arguments_.end());
  return true;
}

bool OpCall::writes_value(const Arguments::Touched& touched) const {
  return touched.write == Write::kInPlace || touched.write == Write::kOverwrites;
}

void OpCall::write_recipe(OpDescription& description) {
  num_written_ = 0;
  if (!arguments_.recordable()) return;
  std::vector<Arguments::Touched>& touched_storages = arguments_.touched();
  const bool makes_something =
      op_->returns_tensors || std::any_of(touched_storages.begin(), touched_storages.end(),
                                          [&](const auto& touched) { return writes_value(touched); });
  if (!makes_something) return;
  std::unique_ptr<RandomState> random;
  if (op_->seeded) {
    random = state_.backend.save_random(generator_of(state_.backend, *op_, *stack_, first_));
    // The op reads a state we cannot save.
    if (random == nullptr) {
      arguments_.set_unrecordable();
      return;
    }
  }
  Recipe& recipe = state_.recipes.add(recipe_);
  recipe.op = op_;
  recipe.source = state_.source;
  recipe.random = std::move(random);
  form_.op = op_;
  form_.keys = call_->keys;
  form_.local_keys = c10::impl::tls_local_dispatch_key_set();
  form_.grad_mode = c10::GradMode::is_enabled();
  copy_arguments();
  for (Arguments::Touched& touched : touched_storages) {
    if (touched.read || touched.write == Write::kInPlace) {
      touched.input = static_cast<std::uint32_t>(description.inputs.size());
      description.inputs.push_back(touched.value);
    }
    if (!writes_value(touched)) continue;
    touched.output = static_cast<std::uint32_t>(description.outputs.size());
    Output output;
    output.nbytes = state_.storage_of(touched.value).nbytes;
    if (touched.write == Write::kInPlace) {
      output.takes_over = touched.input;
    } else {
      output.replaces = touched.value;
    }
    description.outputs.push_back(output);
    form_.results.push_back({RecipeForm::Result::kWritten, output.nbytes});
  }
  num_written_ = description.outputs.size();
  for (const Arguments::Use& use : arguments_.uses()) {
    // The recipe must not keep the tensor.
    if (use.element >= 0) {
      c10::IValue& argument = form_.arguments[use.argument];
      if (form_.slots.empty() || form_.slots.back().argument != use.argument) {
        argument = c10::IValue(argument.toList().copy());
      }
      argument.toList().set(static_cast<std::size_t>(use.element), c10::IValue(at::Tensor()));
    }
    RecipeForm::Slot& slot = form_.slots.emplace_back();
    slot.argument = use.argument;
    slot.element = use.element;
    slot.look.assign(*use.tensor);
    if (use.touched == kNone) continue;
    const Arguments::Touched& touched = touched_storages[use.touched];
    if (touched.input != kNone) {
      slot.kind = RecipeForm::Slot::Kind::kInput;
      slot.index = touched.input;
    } else if (touched.output != kNone) {
      slot.kind = RecipeForm::Slot::Kind::kOutput;
      slot.index = touched.output;
    } else {
      slot.kind = RecipeForm::Slot::Kind::kScratch;
    }
  }
}

// Copies the arguments but for tensors that the op reads or writes: to copy one and drop the copy would cost
// four atomic operations. Uses are in the order of the arguments.
void OpCall::copy_arguments() {
  const std::size_t count = stack_->size() - first_;
  auto use = arguments_.uses().begin();
  const auto end = arguments_.uses().end();
  for (std::size_t a = 0; a < count; ++a) {
    while (use != end && use->argument < a) ++use;
    if (use != end && use->argument == a && use->element < 0) {
      form_.arguments.emplace_back();
    } else {
      form_.arguments.push_back((*stack_)[first_ + a]);
    }
  }
}

void OpCall::drop_recipe() {
  if (recipe_ != kNoRecipe) state_.recipes.remove(recipe_);
  recipe_ = kNoRecipe;
}

// All that the op made is known.
void OpCall::complete_recipe() {
  if (recipe_ != kNoRecipe) state_.recipes[recipe_].form = state_.recipes.share(form_, signature_);
}

// Finds the storages that the kernel made.
void OpCall::find_fresh() {
  fresh_.clear();
  opaque_ = false;
  std::uint32_t returned = 0;
  for (std::size_t i = first_; i < stack_->size(); ++i) {
    for_tensors((*stack_)[i], [&](const at::Tensor& tensor, std::int32_t) {
      const std::uint32_t index = returned++;
      if (!tensor.defined()) return;
      if (!state_.backend.is_plain(tensor)) {
        // A copy on another device looks at nothing of ours.
        opaque_ = opaque_ || state_.backend.is_here(tensor);
        return;
      }
      c10::StorageImpl* storage = storage_of(tensor);
      if (storage == nullptr || !state_.owned->is_raw(*storage)) return;
      tag(tensor);
      for (const Fresh& other : fresh_) {
        if (other.storage == storage) return;
      }
      fresh_.push_back({storage, index});
    });
  }
}

void OpCall::describe_result(OpDescription& description, std::vector<BlockId>& blocks) {
  find_fresh();
  // One rank alone must never run a collective again, whatever the op is called that does it.
  const bool once = collective_noted() || hidden_input_;
  if (once && num_written_ == 0) drop_recipe();
  observe_arguments();
  state_.block_makers.begin(op_, state_.source, state_.next_number);
  for (Output& output : description.outputs) output.tag = state_.next_number++;
  description.cost = cost_of_call();
  description.tag = recipe_;
  blocks.assign(description.outputs.size(), kNone);
  describe_fresh(description, blocks);
  complete_recipe();
  for (Output& output : description.outputs) output.once = once;
  keep_running(blocks);
  state_.block_makers.end(state_.next_number);
  state_.forget_dropped();
  observe_ran(description.cost);
}

void OpCall::describe_fresh(OpDescription& description, std::vector<BlockId>& blocks) {
  Bytes nbytes = 0;
  for (const Fresh& fresh : fresh_) {
    const Bytes offset = state_.region->offset(fresh.storage->_mutable_data_ptr_no_checks().get());
    RawBlock& raw = *state_.owned->find_raw(offset);
    nbytes += raw.nbytes;
    // What was there before the op, and the op did not see, is none of its outputs.
    if (raw.running) {
      raw.number = state_.next_number++;
      if (observing_)
        observed_.results.push_back({raw.nbytes, recipe_ == kNoRecipe ? kOnce : kFresh, offset});
    }
    if (recipe_ == kNoRecipe) continue;
    Output output;
    output.tag = raw.number;
    output.nbytes = raw.nbytes;
    description.outputs.push_back(output);
    blocks.push_back(raw.block);
    form_.results.push_back({fresh.returned, raw.nbytes});
  }
  estimate_->nbytes = nbytes;
  if (recipe_ != kNoRecipe) return;
  for (const Fresh& fresh : fresh_) state_.owned->adopt_raw(fresh.storage)->made_by = op_;
}

Nanoseconds OpCall::cost_of_call() {
  if (const GivenCosts::Given* given = state_.given_costs.next()) {
    state_.given_costs.advance();
    return given->cost;
  }
  if (state_.timer != nullptr) return cost_on_stream();
  const Nanoseconds measured = std::max<Nanoseconds>(ended_ - started_ - elsewhere_, 1);
  // Where a trace is recorded, all measurements together make a better estimate afterwards.
  return state_.options.record ? measured : CostEstimates::update(*estimate_, measured);
}

// The kernel may not have begun. A number or a truth value among the results is one that the host waited for.
Nanoseconds OpCall::cost_on_stream() {
  const bool waited = stack_->size() > first_ && !arguments_.touched().empty() &&
                      ((*stack_)[first_].isScalar() || (*stack_)[first_].isBool());
  if (waited) state_.timer->read();
  if (estimate_->count == 0) {
    Bytes touched_bytes = 0;
    for (const Arguments::Touched& touched : arguments_.touched()) {
      touched_bytes += static_cast<Bytes>(touched.storage->nbytes());
    }
    for (const Fresh& fresh : fresh_) touched_bytes += static_cast<Bytes>(fresh.storage->nbytes());
    estimate_->cost = KernelTimer::guess(touched_bytes);
  }
  return estimate_->cost;
}

// What the kernel allocated and did not free, and is no output, stays until someone frees it.
void OpCall::keep_running(const std::vector<BlockId>& outputs) {
  state_.owned->keep_running(running_mark_, outputs, [&](Bytes offset, const RawBlock& raw) {
    if (observing_) {
      observed_.results.push_back({raw.nbytes, kRaw, offset});
    } else {
      state_.observer->constant(raw.nbytes, kRaw);
    }
  });
}

// The kernel failed, maybe in the middle of writing: what it was to write is as it left it, and cannot be
// recomputed.
bool OpCall::failed(OpDescription& description, std::vector<BlockId>& blocks) {
  keep_running({});
  if (recipe_ == kNoRecipe || description.outputs.empty()) return false;
  observe_arguments();
  state_.block_makers.begin(op_, state_.source, state_.next_number);
  for (Output& output : description.outputs) {
    output.tag = state_.next_number++;
    output.once = true;
  }
  state_.block_makers.end(state_.next_number);
  state_.given_costs.advance();
  description.cost = 1;
  description.tag = recipe_;
  complete_recipe();
  blocks.assign(description.outputs.size(), kNone);
  state_.forget_dropped();
  signature_ = 0;
  observe_ran(description.cost);
  return true;
}

// The op is on record: its outputs become storages of the session.
void OpCall::adopt_outputs() {
  if (!outputs_.empty()) {
    recipe_ = kNoRecipe;
    adopt_written();
    for (std::size_t k = 0; k < fresh_.size(); ++k) {
      void* address = fresh_[k].storage->_mutable_data_ptr_no_checks().get();
      const Bytes offset = state_.region->offset(address);
      const bool address_known = state_.owned->find_raw(offset)->address_known;
      state_.owned->erase_raw(offset);
      OwnedStorage* owned = state_.owned->adopt(fresh_[k].storage, address, outputs_[num_written_ + k], op_);
      if (address_known) state_.pin(owned, PinReason::kAddressKnown);
    }
  }
  if (opaque_) {
    // It may look at its arguments around the dispatcher from now on.
    for (const Arguments::Touched& touched : arguments_.touched()) {
      if (touched.owned != nullptr) state_.pin(touched.owned, PinReason::kAddressKnown);
    }
  }
  state_.forget_dropped();
}

// What the op wrote in place has a new value; the program's tensors move along.
void OpCall::adopt_written() {
  for (const Arguments::Touched& touched : arguments_.touched()) {
    if (touched.output == kNone) continue;
    const std::uint64_t before = state_.number_of(touched.owned->value);
    state_.owned->change_value(touched.owned, outputs_[touched.output], op_);
    // The tensor's old name and its new one are the same to the program.
    state_.engine->release(touched.owned->value);
    state_.observer->released(before);
  }
  // An `out` that the kernel made smaller was not overwritten whole: what is left of it is in no recipe.
  for (const Arguments::Touched& touched : arguments_.touched()) {
    if (touched.output == kNone || touched.write != Write::kOverwrites) continue;
    bool whole = true;
    for (std::size_t i = first_; i < stack_->size(); ++i) {
      for_tensors((*stack_)[i], [&](const at::Tensor& tensor, std::int32_t) {
        if (!tensor.defined() || !state_.backend.is_plain(tensor) || storage_of(tensor) != touched.storage)
          return;
        whole = whole && is_whole(tensor, *touched.storage);
      });
    }
    if (!whole) state_.pin(touched.owned, PinReason::kNoRecipe);
  }
}

// Which arguments the op had, and what it wrote of them.
void OpCall::observe_arguments() {
  if (!state_.observer->wants_ops()) return;
  observing_ = true;
  observed_.clear();
  std::int32_t place = 0;
  for (const Arguments::Touched& touched : arguments_.touched()) {
    if (touched.value == kNone) continue;
    const bool recorded = recipe_ != kNoRecipe && touched.output != kNone;
    const bool overwritten = recorded && touched.input == kNone;
    const bool in_place = recorded && touched.input != kNone;
    const bool written = touched.write != Write::kNo;
    const std::uint8_t effect = overwritten ? kOverwrites : written && !in_place ? kSideEffect : kReads;
    observed_.arguments.push_back({state_.number_of(touched.value), effect});
    if (recorded) observed_.results.push_back({state_.storage_of(touched.value).nbytes, place, -1});
    ++place;
  }
}

void OpCall::observe_ran(Nanoseconds cost) {
  if (!observing_) return;
  observing_ = false;
  observed_.op = op_;
  observed_.cost = cost;
  observed_.signature = signature_;
  observed_.source = state_.source;
  state_.observer->ran(observed_);
}

}  // namespace remint
