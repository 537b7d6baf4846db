// An operator call: have its arguments resident, run the kernel, record what it made. session_arguments.cpp
// looks at the arguments and writes the recipe.
#include "torch/session/session.h"

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "torch/session/clock.h"

namespace remint {
namespace {

// Whether autograd is about to make what comes out of this op the gradient of a leaf.
bool accumulating() {
  const auto node = torch::autograd::get_current_node();
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()) != nullptr;
}

// Whether every tensor on the stack that is on `storage` is all of it.
bool covered(const torch::jit::Stack& stack, std::size_t first, const c10::StorageImpl& storage) {
  bool all = true;
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !is_plain(tensor)) return;
      if (tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() != &storage) return;
      all = all && is_whole(tensor, storage);
    });
  }
  return all;
}

std::uint64_t signature_of(const Operator& op, const torch::jit::Stack& stack, std::size_t first) {
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(&op);
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !is_plain(tensor)) return;
      hash = combine(hash, static_cast<std::uint64_t>(tensor.scalar_type()));
      for (std::int64_t size : tensor.sizes()) hash = combine(hash, static_cast<std::uint64_t>(size));
    });
  }
  return hash;
}

}  // namespace

void Session::run(const Call& call, torch::jit::Stack* stack) {
  const Operator& facts = operator_facts(call.op);
  c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  if (facts.view) {
    const std::size_t first = stack->size() - facts.writes.size();
    call(stack);
    if (facts.may_accumulate && accumulating()) pin_gradients(*stack, first);
    return;
  }
  // Before the lock: finding the line needs the GIL.
  const std::uint32_t source = options_.source_lines ? source_lines_->current() : kNone;
  std::unique_lock<std::recursive_mutex> lock(mutex_);
  if (busy_ || closed_) {
    call(stack);
    return;
  }
  const Clock::time_point entered = Clock::now();
  const Nanoseconds elsewhere = replayed_ + engine_->statistics().searching;
  settle();
  if (options_.blocks || recorder_ != nullptr) note_pass();
  const std::size_t first = stack->size() - facts.writes.size();
  // Whatever happens, no op is left running.
  struct Busy {
    Session& session;
    ~Busy() {
      session.busy_ = false;
      session.current_ = nullptr;
    }
  } busy{*this};
  busy_ = true;
  current_ = &facts;
  source_ = source;
  std::uint64_t signature = 0;
  CostEstimates::Estimate* estimate = nullptr;
  std::unique_ptr<Recipe> recipe;
  for (bool acquired = false; !acquired;) {
    try {
      look_at(facts, *stack, first);
      if (call.kernel != nullptr) recordable_ = false;
      prepare_writes(facts);
      signature = signature_of(facts, *stack, first);
      estimate = &costs_.of(signature);
      const bool given = next_cost_ < given_costs_.size();
      const bool given_bytes = given && given_costs_[next_cost_].nbytes >= 0;
      engine_->acquire(acquired_, given ? given_costs_[next_cost_].cost : estimate->cost,
                       given_bytes ? given_costs_[next_cost_].nbytes : estimate->nbytes);
      acquired = true;
    } catch (const OutOfMemory& error) {
      let_go_of_unlocked_constants();
      forget_dropped();
      if (!options_.spill || !spill_resident(error.at_once)) fail(error);
    } catch (...) {
      let_go_of_unlocked_constants();
      forget_dropped();
      throw;
    }
  }
  let_go_of_unlocked_constants();
  Nanoseconds cost = 0;
  Clock::time_point left;
  try {
    recipe = write_recipe(facts, call.keys, *stack, first);
    const Nanoseconds searching = engine_->statistics().searching;
    const Clock::time_point started = Clock::now();
    bookkeeping_ += std::chrono::duration_cast<std::chrono::nanoseconds>(started - entered).count() -
                    (replayed_ + searching - elsewhere);
    run_kernel(facts, call, stack, first);
    left = Clock::now();
    cost = std::chrono::duration_cast<std::chrono::nanoseconds>(left - started).count() -
           (engine_->statistics().searching - searching);
  } catch (...) {
    after_failure(facts, std::move(recipe));
    throw;
  }
  if (next_cost_ < given_costs_.size()) {
    cost = given_costs_[next_cost_++].cost;
  } else if (options_.record) {
    // All measurements together make a better estimate afterwards.
    cost = std::max<Nanoseconds>(cost, 1);
  } else {
    cost = CostEstimates::update(*estimate, std::max<Nanoseconds>(cost, 1));
  }
  const bool gradient = facts.may_accumulate && accumulating();
  estimate->nbytes = commit(facts, std::move(recipe), *stack, first, cost, signature);
  if (gradient) pin_gradients(*stack, first);
  if (facts.read_around) pin_results(*stack, first, Why::kHandedOut, /*integers_only=*/true);
  forget_dropped();
  if (options_.chaos) {
    engine_->evict_all();
    forget_dropped();
  }
  if (options_.check) engine_->check();
  bookkeeping_ += since(left);
}

// The gradient of a leaf stays: what it was made from is let go of right after, so to make it again would
// take the whole backward, and the optimizer needs all gradients at once, because it writes what they were
// made from.
void Session::pin_gradients(const torch::jit::Stack& stack, std::size_t first) {
  pin_results(stack, first, Why::kGradient, /*integers_only=*/false);
}

void Session::pin_results(const torch::jit::Stack& stack, std::size_t first, Why why, bool integers_only) {
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !is_plain(tensor)) return;
      if (integers_only && !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) return;
      Held* held = holder_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
      if (held != nullptr && held->session.get() == this) pin(held, why);
    });
  }
}

// Runs the kernel. If it runs out of memory before it has written anything that stays, everything else makes
// room and it is tried again.
void Session::run_kernel(const Operator& op, const Call& call, torch::jit::Stack* stack, std::size_t first) {
  if (recorder_ != nullptr) recorder_->begin_requests();
  bool again = engine_->may_try_again(op.writes_any || !recordable_);
  std::unique_ptr<RandomState> random;
  at::Generator generator;
  if (again && op.seeded) {
    generator = generator_of(op, *stack, first);
    random = RandomState::of(generator);
    again = random != nullptr;
  }
  if (!again) {
    call(stack);
    return;
  }
  const torch::jit::Stack arguments(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  // Batch norm may write its running statistics before it asks for memory the last time.
  std::vector<std::pair<c10::StorageImpl*, std::string>> statistics;
  for (const Touched& touched : touched_) {
    if (touched.write != Operator::Write::kSideEffect) continue;
    const auto* bytes = static_cast<const char*>(touched.storage->_mutable_data_ptr_no_checks().get());
    statistics.emplace_back(touched.storage, std::string(bytes, touched.storage->nbytes()));
  }
  Bytes refused = 0;
  for (retry_ = true;;) {
    try {
      call(stack);
      retry_ = false;
      return;
    } catch (const OutOfMemory& error) {
      refused = error.at_once;
    } catch (...) {
      retry_ = false;
      throw;
    }
    keep_running({});
    if (recorder_ != nullptr) recorder_->begin_requests();
    for (const auto& [storage, bytes] : statistics) {
      std::memcpy(storage->_mutable_data_ptr_no_checks().get(), bytes.data(), bytes.size());
    }
    if (random != nullptr)
      random->restore(*static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl()));
    stack->resize(std::min(stack->size(), first));
    stack->insert(stack->end(), arguments.begin(), arguments.end());
    // With nothing left to do, what does not fit is an error, or spilled.
    if (!engine_->make_room(refused)) retry_ = false;
  }
}

// Records the op and adopts what it made; returns the bytes it made.
Bytes Session::commit(const Operator& op, std::unique_ptr<Recipe> recipe, const torch::jit::Stack& stack,
                      std::size_t first, Nanoseconds cost, std::uint64_t signature) {
  // Storages that the kernel made.
  fresh_.clear();
  std::uint32_t returned = 0;
  bool opaque = false;
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      const std::uint32_t index = returned++;
      if (!tensor.defined()) return;
      if (!is_plain(tensor)) {
        opaque = true;
        return;
      }
      c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      const c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
      if (pointer.get_deleter() != &loose_deleter || !region_->contains(pointer.get())) return;
      for (const Fresh& other : fresh_) {
        if (other.storage == storage) return;
      }
      fresh_.push_back({storage, index});
    });
  }
  if (recipe == nullptr) description_.clear();
  if (recorder_ != nullptr) record_arguments(recipe != nullptr);
  note_maker(&op);
  for (Output& output : description_.outputs) output.tag = next_number_++;
  description_.cost = cost;
  description_.tag = reinterpret_cast<std::uintptr_t>(recipe.get());
  blocks_.assign(description_.outputs.size(), kNone);
  Bytes nbytes = 0;
  for (const Fresh& fresh : fresh_) {
    const Bytes offset = region_->offset(fresh.storage->_mutable_data_ptr_no_checks().get());
    Loose& loose = loose_.at(offset);
    nbytes += loose.nbytes;
    // What was there before the op, and the op did not see, is none of its outputs.
    if (loose.running) loose.number = next_number_++;
    if (recorder_ != nullptr && loose.running)
      recorder_->fresh_output(loose.nbytes, recipe == nullptr ? kOnce : kFresh, offset);
    if (recipe == nullptr) continue;
    Output output;
    output.tag = loose.number;
    output.nbytes = loose.nbytes;
    description_.outputs.push_back(output);
    blocks_.push_back(loose.block);
    recipe->results.push_back({fresh.returned, loose.nbytes});
  }
  const std::size_t num_written = description_.outputs.size() - (recipe == nullptr ? 0 : fresh_.size());
  if (recipe == nullptr) {
    for (const Fresh& fresh : fresh_) {
      Touched touched;
      touched.storage = fresh.storage;
      adopt_loose(touched);
      touched.held->made_by = &op;
    }
  }
  keep_running(blocks_);
  note_maker(nullptr);
  forget_dropped();
  const bool recorded = !description_.outputs.empty();
  if (recorder_ != nullptr) recorder_->op(op, cost, signature, source_);
  recording_op_ = false;
  engine_->commit(description_, blocks_, outputs_);
  if (recorded) {
    recipe.release();
    hold_written(op);
    // An `out` that the kernel made smaller was not overwritten whole: what is left of it is in no recipe.
    for (const Touched& touched : touched_) {
      if (touched.output != kNone && touched.write == Operator::Write::kOverwrites &&
          !covered(stack, first, *touched.storage)) {
        pin_held(touched.held, Why::kNoRecipe);
      }
    }
    for (std::size_t k = 0; k < fresh_.size(); ++k) {
      void* address = fresh_[k].storage->_mutable_data_ptr_no_checks().get();
      loose_.erase(region_->offset(address));
      adopt(fresh_[k].storage, address, outputs_[num_written + k], &op);
    }
  }
  if (opaque) {
    // It may look at its arguments around the dispatcher from now on.
    for (const Touched& touched : touched_) {
      if (touched.held != nullptr) pin_held(touched.held, Why::kHandedOut);
    }
  }
  return nbytes;
}

// What the op wrote in place has a new value; the program's tensors move along.
void Session::hold_written(const Operator& op) {
  for (const Touched& touched : touched_) {
    if (touched.output == kNone) continue;
    const ValueId value = outputs_[touched.output];
    set_holder(touched.held->value, nullptr);
    touched.held->value = value;
    touched.held->made_by = &op;
    touched.held->why = Why::kNone;
    set_holder(value, touched.held);
    // The tensor's old name and its new one are the same to the program.
    engine_->release(value);
    if (recorder_ != nullptr) recorder_->about(EventKind::kRelease, touched.number);
  }
}

// The kernel failed, maybe in the middle of writing: what it was to write is as it left it, and cannot be
// made again.
void Session::after_failure(const Operator& op, std::unique_ptr<Recipe> recipe) {
  keep_running({});
  if (recipe == nullptr || description_.outputs.empty()) {
    engine_->abandon();
    forget_dropped();
    return;
  }
  forget_dropped();
  if (recorder_ != nullptr) record_arguments(true);
  note_maker(&op);
  for (Output& output : description_.outputs) output.tag = next_number_++;
  note_maker(nullptr);
  if (recorder_ != nullptr) recorder_->op(op, 1, 0, source_);
  recording_op_ = false;
  if (next_cost_ < given_costs_.size()) ++next_cost_;
  description_.cost = 1;
  description_.tag = reinterpret_cast<std::uintptr_t>(recipe.release());
  blocks_.assign(description_.outputs.size(), kNone);
  engine_->commit(description_, blocks_, outputs_);
  hold_written(op);
  for (const Touched& touched : touched_) {
    if (touched.output != kNone) pin_held(touched.held, Why::kNoRecipe);
  }
  forget_dropped();
}

// What the kernel allocated and did not free, and is no output, stays until someone frees it.
void Session::keep_running(const std::vector<BlockId>& outputs) {
  for (Bytes offset : running_) {
    auto found = loose_.find(offset);
    if (found == loose_.end() || !found->second.running) continue;
    found->second.running = false;
    if (std::find(outputs.begin(), outputs.end(), found->second.block) == outputs.end()) {
      engine_->keep(found->second.block);
      found->second.number = next_number_++;
      if (recorder_ == nullptr) continue;
      if (recording_op_) {
        recorder_->fresh_output(found->second.nbytes, kKept, offset);
      } else {
        recorder_->constant(found->second.nbytes, kKept);
      }
    }
  }
  running_.clear();
}

}  // namespace remint
