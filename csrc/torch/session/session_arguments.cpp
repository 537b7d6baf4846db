// What an operator call touches: the storages of its arguments, what is written and how, and the recipe to
// run it again.
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "torch/session/session.h"

namespace remint {

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
  if (known == constants_.end() || !kept_[engine_->records().value(known->second).storage].storage) return;
  // Held until the op has locked it: what is done before that may drop its last reader.
  touched.value = known->second;
  engine_->retain(touched.value);
  unlocked_constants_.push_back(touched.value);
}

void Session::add_constant(Touched& touched) {
  if (--constants_until_look_ == 0) let_go_of_unused_constants();
  forget_dropped();
  auto resting = constants_.find(touched.storage);
  if (resting == constants_.end()) {
    touched.value = engine_->adopt_constant(kNone, 0, next_number_++);
  } else {
    // Of the same storage, or of one that was at its address: no recipe reads it, so it can be of any.
    touched.value = resting->second;
    engine_->reuse_cached(touched.value, next_number_++);
  }
  if (recorder_ != nullptr)
    recorder_->constant(static_cast<Bytes>(touched.storage->nbytes()), remint::kElsewhere);
  keep(touched.value, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(touched.storage));
  unlocked_constants_.push_back(touched.value);
}

// Only recipes hold on to constants elsewhere. Between their first use and the op's record, the op's lock
// does.
void Session::let_go_of_unlocked_constants() {
  for (ValueId value : unlocked_constants_) engine_->release(value);
  unlocked_constants_.clear();
}

// Constants elsewhere that the program let go of: better keep what was made from them, where that is smaller.
// Those that rested all the time since the last look are forgotten.
void Session::let_go_of_unused_constants() {
  std::map<std::uint64_t, ValueId> unused;  // in the order in which they were first used
  std::vector<std::pair<const c10::StorageImpl*, ValueId>> rested;
  for (const auto& [storage, value] : constants_) {
    Kept& kept = kept_[engine_->records().value(value).storage];
    if (!kept.storage) {
      if (!std::exchange(kept.used, false)) rested.emplace_back(storage, value);
      continue;
    }
    if (kept.retired || kept.storage.use_count() > 1) continue;
    kept.retired = true;
    unused[kept.number] = value;
  }
  for (const auto& [storage, value] : rested) {
    constants_.erase(storage);
    engine_->drop_cached(value);
  }
  for (const auto& [number, value] : unused) {
    const StorageId id = engine_->records().value(value).storage;
    engine_->retire(value, static_cast<Bytes>(kept_[id].storage->nbytes()));
    if (recorder_ != nullptr) recorder_->about(EventKind::kRelease, number);
  }
  constants_until_look_ = 64 + constants_.size();
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
}

std::unique_ptr<Recipe> Session::write_recipe(const Operator& op, c10::DispatchKeySet keys,
                                              const torch::jit::Stack& stack, std::size_t first) {
  description_.inputs.clear();
  description_.outputs.clear();
  if (!recordable_) return nullptr;
  const bool makes_something =
      op.returns_tensors || std::any_of(touched_.begin(), touched_.end(), [](const Touched& touched) {
        return touched.write == Operator::Write::kInPlace || touched.write == Operator::Write::kOverwrites;
      });
  if (!makes_something) return nullptr;
  std::unique_ptr<Recipe> recipe = new_recipe();
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
    Recipe::Slot& slot = recipe->slots.emplace_back();
    slot.argument = use.argument;
    slot.element = use.element;
    slot.look.assign(*use.tensor);
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
  }
  return recipe;
}

std::unique_ptr<Recipe> Session::new_recipe() {
  if (spare_recipes_.empty()) return std::make_unique<Recipe>();
  std::unique_ptr<Recipe> recipe = std::move(spare_recipes_.back());
  spare_recipes_.pop_back();
  return recipe;
}

}  // namespace remint
