// An operator call: look at its arguments, have them resident, run the kernel, record what it made.
#include "session.h"

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

namespace remint {
namespace {

using Clock = std::chrono::steady_clock;

Nanoseconds since(Clock::time_point started) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started).count();
}

// Whether autograd is about to make what comes out of this op the gradient of a leaf.
bool accumulating() {
  const auto node = torch::autograd::get_current_node();
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()) != nullptr;
}

// Whether `tensor` is all of its storage, each element once.
bool is_whole(const at::Tensor& tensor, const c10::StorageImpl& storage) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == storage.nbytes();
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

// Where a seeded op takes its random numbers from.
at::Generator generator_of(const Operator& op, const torch::jit::Stack& stack, std::size_t first) {
  if (op.generator >= 0) {
    const c10::IValue& argument = stack[first + static_cast<std::size_t>(op.generator)];
    if (argument.isGenerator()) return argument.toGenerator();
  }
  return at::detail::getDefaultCPUGenerator();
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
  settle();
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
  try {
    recipe = write_recipe(facts, call.keys, *stack, first);
    const Nanoseconds searching = engine_->statistics().searching;
    const Clock::time_point started = Clock::now();
    bookkeeping_ += std::chrono::duration_cast<std::chrono::nanoseconds>(started - entered).count();
    run_kernel(facts, call, stack, first);
    cost = since(started) - (engine_->statistics().searching - searching);
  } catch (...) {
    after_failure(facts, std::move(recipe));
    throw;
  }
  const Clock::time_point left = Clock::now();
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
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !is_plain(tensor)) return;
      Held* held = holder_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
      if (held != nullptr && held->session.get() == this) pin(held, Why::kGradient);
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

void Session::look_at(const Operator& op, const torch::jit::Stack& stack, std::size_t first) {
  uses_.clear();
  touched_.clear();
  acquired_.clear();
  recordable_ = !op.uninitialized && !op.hands_out;
  const bool training = op.statistics >= 0 &&
                        (op.training < 0 || stack[first + static_cast<std::size_t>(op.training)].toBool());
  for (std::uint32_t a = 0; a < op.writes.size(); ++a) {
    const c10::IValue& value = stack[first + a];
    Operator::Write write = op.writes[a];
    if (op.statistics >= 0 &&
        (static_cast<int>(a) == op.statistics || static_cast<int>(a) == op.statistics + 1)) {
      write = training ? Operator::Write::kSideEffect : Operator::Write::kNo;
    }
    if (value.isTensor() || value.isList()) {
      for_tensors(value, [&](const at::Tensor& tensor, std::int32_t element) {
        if (tensor.defined()) look_at(op, a, element, tensor, write);
      });
    } else if (value.isObject() || value.isPyObject() || value.isCapsule() || value.isStorage() ||
               value.isFuture()) {
      recordable_ = false;
    }
  }
  for (Touched& touched : touched_) {
    if (touched.value != kNone) acquired_.push_back(touched.value);
  }
}

void Session::look_at(const Operator& op, std::uint32_t argument, std::int32_t element,
                      const at::Tensor& tensor, Operator::Write write) {
  if (!is_plain(tensor)) {
    recordable_ = false;
    return;
  }
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  // A wrapped number is a constant of the program, made for this call: the recipe keeps it.
  if (impl->is_wrapped_number() && write == Operator::Write::kNo) return;
  Use use{argument, element, &tensor, kNone};
  if (storage != nullptr && storage->nbytes() > 0) {
    auto same = std::find_if(touched_.begin(), touched_.end(),
                             [&](const Touched& other) { return other.storage == storage; });
    if (same == touched_.end()) {
      touched_.emplace_back();
      same = std::prev(touched_.end());
      same->storage = storage;
      identify(*same, write != Operator::Write::kNo);
    }
    use.touched = static_cast<std::uint32_t>(same - touched_.begin());
    if (write == Operator::Write::kNo) {
      same->read = true;
      if (same->value == kNone) add_constant(*same);
    } else {
      // Of several ways to write it, the one that asks most.
      const bool other_way = same->write != Operator::Write::kNo && same->write != write;
      same->write = other_way ? Operator::Write::kInPlace : write;
      same->whole = same->whole && is_whole(tensor, *storage);
    }
    // Weights change at every step. Were they made again from how they were initialised, so would be all of
    // training. (In backward, what autograd saved looks like a weight, too.)
    if (same->held != nullptr && c10::GradMode::is_enabled() && impl->requires_grad() && tensor.is_leaf())
      pin_held(same->held, Why::kParameter);
    if (op.hands_out && same->held != nullptr) pin_held(same->held, Why::kHandedOut);
  }
  uses_.push_back(use);
}

// Finds what the engine calls this storage.
void Session::identify(Touched& touched, bool written) {
  const c10::DataPtr& pointer = touched.storage->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() == &held_deleter) {
    Held* held = static_cast<Held*>(pointer.get_context());
    if (held->session.get() == this) {
      touched.held = held;
      touched.value = held->value;
      return;
    }
    // Another budget's: from now on it stays where it is.
    held->session->pin(held, Why::kHandedOut);
    if (written) held->session->before_write(held);
  } else if (pointer.get_deleter() == &loose_deleter && region_->contains(pointer.get())) {
    adopt_loose(touched);
    return;
  }
  forget_dropped();
  auto known = constants_.find(touched.storage);
  if (known == constants_.end()) return;
  // Held until the op has locked it: what is done before that may drop its last reader.
  touched.value = known->second;
  engine_->retain(touched.value);
  unlocked_constants_.push_back(touched.value);
}

void Session::add_constant(Touched& touched) {
  if (--constants_until_look_ == 0) let_go_of_unused_constants();
  forget_dropped();
  touched.value = engine_->adopt_constant(kNone, 0, next_number_++);
  if (recorder_ != nullptr)
    recorder_->constant(static_cast<Bytes>(touched.storage->nbytes()), remint::kElsewhere);
  constants_[touched.storage] = touched.value;
  kept_[engine_->records().value(touched.value).storage] = {
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(touched.storage), number_of(touched.value)};
  unlocked_constants_.push_back(touched.value);
}

// Only recipes hold on to constants elsewhere. Between their first use and the op's record, the op's lock
// does.
void Session::let_go_of_unlocked_constants() {
  for (ValueId value : unlocked_constants_) engine_->release(value);
  unlocked_constants_.clear();
}

// Constants elsewhere that the program let go of: better keep what was made from them, where that is smaller.
void Session::let_go_of_unused_constants() {
  std::map<std::uint64_t, StorageId> unused;  // in the order in which they were first used
  for (auto& [storage, kept] : kept_) {
    if (kept.retired || kept.storage.use_count() > 1) continue;
    kept.retired = true;
    unused[kept.number] = storage;
  }
  for (const auto& [number, storage] : unused) {
    engine_->retire(engine_->records().storage(storage).values[0],
                    static_cast<Bytes>(kept_.at(storage).storage->nbytes()));
    if (recorder_ != nullptr) recorder_->about(EventKind::kRelease, number);
  }
  constants_until_look_ = 64 + kept_.size();
}

void Session::prepare_writes(const Operator& op) {
  if (!op.writes_any && op.statistics < 0) return;
  auto pinned = [&](const Touched& touched) {
    return touched.held == nullptr ||
           engine_->records().storage(engine_->records().value(touched.value).storage).pinned;
  };
  for (Touched& touched : touched_) {
    if (touched.write == Operator::Write::kNo) continue;
    const bool known_elsewhere =
        touched.held == nullptr ||
        engine_->records().storage(engine_->records().value(touched.value).storage).fixed;
    if (touched.write == Operator::Write::kOverwrites &&
        (!touched.whole || touched.read || known_elsewhere)) {
      touched.write = Operator::Write::kInPlace;
    }
    // What is made from bytes that change here and cannot be made again cannot be made again either.
    if (touched.write == Operator::Write::kInPlace && pinned(touched)) recordable_ = false;
  }
  for (Touched& touched : touched_) {
    if (touched.write == Operator::Write::kNo || touched.value == kNone) continue;
    const bool side_effect = touched.write == Operator::Write::kSideEffect;
    if (!pinned(touched) && (!recordable_ || side_effect)) pin_held(touched.held, Why::kNone);
  }
  for (Touched& touched : touched_) {
    if (touched.write != Operator::Write::kNo && touched.value != kNone) engine_->before_write(touched.value);
  }
}

std::unique_ptr<Recipe> Session::write_recipe(const Operator& op, c10::DispatchKeySet keys,
                                              const torch::jit::Stack& stack, std::size_t first) {
  if (!recordable_) return nullptr;
  description_.clear();
  const bool makes_something =
      op.returns_tensors || std::any_of(touched_.begin(), touched_.end(), [](const Touched& touched) {
        return touched.write == Operator::Write::kInPlace || touched.write == Operator::Write::kOverwrites;
      });
  if (!makes_something) return nullptr;
  auto recipe = std::make_unique<Recipe>();
  recipe->op = &op;
  recipe->source = source_;
  recipe->keys = keys;
  recipe->local_keys = c10::impl::tls_local_dispatch_key_set();
  recipe->grad_mode = c10::GradMode::is_enabled();
  if (op.seeded) {
    at::Generator generator = generator_of(op, stack, first);
    recipe->random = RandomState::of(generator);
    if (recipe->random == nullptr) {
      // The op reads a state we cannot save.
      recordable_ = false;
      return nullptr;
    }
  }
  recipe->arguments.assign(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  for (Touched& touched : touched_) {
    const bool written =
        touched.write == Operator::Write::kInPlace || touched.write == Operator::Write::kOverwrites;
    if (touched.read || touched.write == Operator::Write::kInPlace) {
      touched.input = static_cast<std::uint32_t>(description_.inputs.size());
      description_.inputs.push_back(touched.value);
    }
    if (!written) continue;
    touched.output = static_cast<std::uint32_t>(description_.outputs.size());
    Output output;
    output.nbytes = engine_->records().storage(engine_->records().value(touched.value).storage).nbytes;
    if (touched.write == Operator::Write::kInPlace) {
      output.takes_over = touched.input;
    } else {
      output.replaces = touched.value;
    }
    description_.outputs.push_back(output);
    recipe->results.push_back({Recipe::Result::kWritten, output.nbytes});
  }
  recipe->slots.reserve(uses_.size());
  for (const Use& use : uses_) {
    Recipe::Slot slot;
    slot.argument = use.argument;
    slot.element = use.element;
    slot.look = TensorLook(*use.tensor);
    if (use.touched != kNone) {
      const Touched& touched = touched_[use.touched];
      if (touched.input != kNone) {
        slot.kind = Recipe::Slot::Kind::kInput;
        slot.index = touched.input;
      } else if (touched.output != kNone) {
        slot.kind = Recipe::Slot::Kind::kOutput;
        slot.index = touched.output;
      } else {
        slot.kind = Recipe::Slot::Kind::kScratch;
      }
    }
    // The recipe must not keep the tensor.
    c10::IValue& argument = recipe->arguments[use.argument];
    if (use.element < 0) {
      argument = c10::IValue();
    } else {
      if (recipe->slots.empty() || recipe->slots.back().argument != use.argument) {
        argument = c10::IValue(argument.toList().copy());
      }
      argument.toList().set(static_cast<std::size_t>(use.element), c10::IValue(at::Tensor()));
    }
    recipe->slots.push_back(std::move(slot));
  }
  return recipe;
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
  for (Output& output : description_.outputs) output.tag = next_number_++;
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
