#include "torch/session/arguments.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "torch/dispatch/arguments.h"
#include "torch/dispatch/tags.h"
#include "torch/session/freed_sources.h"
#include "torch/session/outside_constants.h"
#include "torch/session/owned_storages.h"

namespace remint {

void Arguments::look(const Operator& op, const torch::jit::Stack& stack, std::size_t first) {
  drop_references();
  uses_.clear();
  touched_.clear();
  recordable_ = !op.uninitialized && !op.pins_arguments;
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
        if (element == kNestedElement) recordable_ = false;
        if (tensor.defined()) look_at(op, a, element, tensor, write);
      });
    } else if (value.isObject() || value.isPyObject() || value.isCapsule() || value.isStorage() ||
               value.isFuture()) {
      recordable_ = false;
    }
  }
  decide_writes(op);
}

void Arguments::look_at(const Operator& op, std::uint32_t argument, std::int32_t element,
                        const at::Tensor& tensor, Operator::Write write) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  // A wrapped number is a constant of the program, made for this call: the recipe keeps it.
  if (impl->is_wrapped_number() && write == Operator::Write::kNo) return;
  if (!state_.backend.is_plain(tensor)) {
    recordable_ = false;
    return;
  }
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  Use use{argument, element, &tensor, kNone};
  if (storage != nullptr && storage->nbytes() > 0) {
    auto same = std::find_if(touched_.begin(), touched_.end(),
                             [&](const Touched& other) { return other.storage == storage; });
    if (same == touched_.end()) {
      touched_.emplace_back();
      same = std::prev(touched_.end());
      same->storage = storage;
      identify(*same, write == Operator::Write::kNo);
    }
    // Other threads may write it, also if it is a weight outside of the arena: then recipes that read it must
    // be told.
    tag(tensor);
    use.touched = static_cast<std::uint32_t>(same - touched_.begin());
    if (write == Operator::Write::kNo) {
      same->read = true;
      if (same->value == kNone) {
        state_.forget_dropped();
        same->value = state_.constants->use(storage);
        referenced_.push_back(same->value);
      }
    } else {
      // Of several ways to write it, the one that asks most.
      const bool other_way = same->write != Operator::Write::kNo && same->write != write;
      same->write = other_way ? Operator::Write::kInPlace : write;
      same->whole = same->whole && is_whole(tensor, *storage);
    }
    // Weights change at every step. Were they recomputed from how they were initialised, so would be all of
    // training. (In backward, what autograd saved looks like a weight, too. A leaf that is a view is an
    // activation: DTensor makes such.)
    if (same->owned != nullptr && c10::GradMode::is_enabled() && impl->requires_grad() && tensor.is_leaf() &&
        !tensor.is_view()) {
      state_.pin(same->owned, PinReason::kParameter);
    }
    if (same->owned != nullptr && c10::GradMode::is_enabled()) {
      if (impl->requires_grad()) same->owned->used_for_gradients = true;
      // What goes from one block of FSDP to the next is needed before the parameters of its own block are
      // back.
      if (state_.freed->any() && !state_.storage_of(same->value).pinned &&
          state_.freed->is_older(state_.number_of(same->value)) &&
          state_.engine->depends_on_away(same->value)) {
        state_.pin(same->owned, PinReason::kNone);
      }
    }
    if (op.pins_arguments && same->owned != nullptr) state_.pin(same->owned, PinReason::kAddressKnown);
  }
  uses_.push_back(use);
}

// Finds what the engine calls this storage.
void Arguments::identify(Touched& touched, bool reads) {
  touched.owned = state_.owned->find(touched.storage);
  if (touched.owned == nullptr && state_.owned->is_raw(*touched.storage)) {
    touched.owned = state_.owned->adopt_raw(touched.storage);
  }
  if (touched.owned != nullptr) {
    touched.value = touched.owned->value;
    return;
  }
  state_.forget_dropped();
  if (reads) {
    touched.value = state_.constants->use(touched.storage);
  } else {
    touched.value = state_.constants->find(touched.storage);
    if (touched.value == kNone) return;
    state_.engine->retain(touched.value);
  }
  // What is done before the op locks it may drop its last reader.
  referenced_.push_back(touched.value);
}

void Arguments::decide_writes(const Operator& op) {
  if (!op.writes_any && op.statistics < 0) return;
  auto pinned = [&](const Touched& touched) {
    return touched.owned == nullptr || state_.storage_of(touched.value).pinned;
  };
  for (Touched& touched : touched_) {
    if (touched.write == Operator::Write::kNo) continue;
    const bool address_known = touched.owned == nullptr || state_.storage_of(touched.value).fixed;
    if (touched.write == Operator::Write::kOverwrites && (!touched.whole || touched.read || address_known)) {
      touched.write = Operator::Write::kInPlace;
    }
    // What is computed from bytes that change here and cannot be recomputed cannot be recomputed either.
    if (touched.write == Operator::Write::kInPlace && pinned(touched)) recordable_ = false;
  }
  for (Touched& touched : touched_) {
    if (touched.write == Operator::Write::kNo || touched.value == kNone) continue;
    const bool side_effect = touched.write == Operator::Write::kSideEffect;
    if (!pinned(touched) && (!recordable_ || side_effect)) state_.pin(touched.owned, PinReason::kNone);
  }
}

// Only recipes keep constants outside of the arena. Between their first use and the op's record, the op's
// lock does.
void Arguments::drop_references() {
  for (ValueId value : referenced_) state_.engine->release(value);
  referenced_.clear();
}

}  // namespace remint
