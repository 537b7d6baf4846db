#include "torch/session/torch_device.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <optional>

#include "simulator/trace_columns.h"
#include "torch/dispatch/arguments.h"
#include "torch/dispatch/threads.h"
#include "torch/older_torch.h"
#include "torch/session/freed_sources.h"
#include "torch/session/outside_constants.h"
#include "torch/session/owned_storages.h"
#include "torch/session/session.h"

namespace remint {
namespace {

const char* const kEvictedMessage =
    "This tensor was evicted by remint.budget, and something reads its memory without a PyTorch operator, so "
    "remint "
    "cannot bring it back first. Call remint.materialize(tensor) before the read, or remint.pin(tensor) if "
    "the address "
    "is kept.";

// The default generator as an op left it, whatever happens in between.
class DefaultGeneratorGuard {
 public:
  DefaultGeneratorGuard(const Backend& backend, const RandomState* state) : backend_(backend) {
    if (state == nullptr) return;
    generator_ = backend.default_generator();
    before_ = backend.save_random(generator_);
    backend.restore_random(*state, generator_);
  }
  ~DefaultGeneratorGuard() {
    if (before_ != nullptr) backend_.restore_random(*before_, generator_);
  }
  DefaultGeneratorGuard(const DefaultGeneratorGuard&) = delete;
  DefaultGeneratorGuard& operator=(const DefaultGeneratorGuard&) = delete;

 private:
  const Backend& backend_;
  at::Generator generator_;
  std::unique_ptr<RandomState> before_;
};

}  // namespace

// Runs an op again: the same kernel, on tensors that look the same, with the same random numbers, as much out
// of the program's sight as can be.
void TorchDevice::run(const Op& op, std::vector<BlockId>& blocks) {
  const Recipe& recipe = state_.recipes[op.tag];
  const std::shared_ptr<const RecipeForm> kept = recipe.form;
  const RecipeForm& form = *kept;
  Backend& backend = state_.backend;
  Engine& engine = *state_.engine;
  TORCH_CHECK(!recipe.op->gone, "remint: ", recipe.op->name,
              " has to run again, but its library was removed. Keep the library, or pin its results with "
              "remint.pin.");
  auto address = [&](BlockId block, std::size_t nbytes) { return address_in_block(state_, block, nbytes); };
  // A block that is new has no memory of its own yet. One of an op that failed may be left.
  auto forget_memory = [&](BlockId block, std::size_t nbytes) {
    if (state_.options.soft) hand_back(state_, state_.arena->block(block).address, nbytes);
  };
  const std::size_t mark = state_.owned->running_mark();
  // Where each input is; one that is written in place may be worked on in a copy.
  std::vector<void*> inputs(op.inputs.size());
  std::vector<std::size_t> sizes(op.inputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const StorageId id = engine.records().value(op.inputs[i].value).storage;
    inputs[i] = state_.address_of(id);
    sizes[i] = state_.nbytes_of(id);
  }
  for (std::size_t k = 0; k < op.takes_over.size(); ++k) {
    if (op.takes_over[k] != kNone && blocks[k] != kNone) forget_memory(blocks[k], sizes[op.takes_over[k]]);
  }
  if (state_.order != nullptr) order_replay(op, inputs, sizes, blocks);
  for (std::size_t k = 0; k < op.takes_over.size(); ++k) {
    if (op.takes_over[k] == kNone || blocks[k] == kNone) continue;
    void*& from = inputs[op.takes_over[k]];
    void* to = address(blocks[k], sizes[op.takes_over[k]]);
    backend.copy(to, from, sizes[op.takes_over[k]]);
    from = to;
  }
  std::vector<at::Tensor> tensors;
  std::vector<c10::DataPtr> scratch;
  tensors.reserve(form.slots.size());
  for (const RecipeForm::Slot& slot : form.slots) {
    switch (slot.kind) {
      case RecipeForm::Slot::Kind::kInput:
        tensors.push_back(slot.look.tensor_at(backend, inputs[slot.index], sizes[slot.index]));
        break;
      case RecipeForm::Slot::Kind::kOutput: {
        const auto nbytes = static_cast<std::size_t>(form.results[slot.index].nbytes);
        BlockId& block = blocks[slot.index];
        if (block == kNone) {
          block = engine.allocate(form.results[slot.index].nbytes);
          forget_memory(block, nbytes);
          if (state_.order != nullptr) state_.order->before_reuse(address(block, nbytes), nbytes);
        }
        tensors.push_back(slot.look.tensor_at(backend, address(block, nbytes), nbytes));
        break;
      }
      case RecipeForm::Slot::Kind::kScratch:
        scratch.push_back(backend.ordinary_allocator()->allocate(slot.look.nbytes()));
        backend.zero(scratch.back().get(), slot.look.nbytes());
        tensors.push_back(slot.look.tensor_at(backend, scratch.back().get(), slot.look.nbytes()));
        break;
      case RecipeForm::Slot::Kind::kEmpty:
        tensors.push_back(slot.look.tensor_at(backend, nullptr, 0));
        break;
    }
  }
  torch::jit::Stack stack = make_stack(form, tensors);
  const bool own_generator = recipe.random != nullptr && recipe.op->generator >= 0;
  if (own_generator) {
    at::Generator generator = backend.new_generator();
    backend.restore_random(*recipe.random, generator);
    stack[static_cast<std::size_t>(recipe.op->generator)] = generator;
  }
  auto keep = [&](Bytes, const RawBlock& raw) { state_.observer->constant(raw.nbytes, kRaw); };
  const bool nested = std::exchange(state_.replaying, true);
  try {
    DefaultGeneratorGuard generator(backend, own_generator ? nullptr : recipe.random.get());
    c10::AutoGradMode grad_mode(form.grad_mode);
    const c10::DispatchKeySet hidden({kKey, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                      c10::DispatchKey::PythonDispatcher});
    c10::impl::ForceDispatchKeyGuard keys(
        form.local_keys.included_.add(kKey) - (hidden - c10::DispatchKeySet(kKey)),
        form.local_keys.excluded_ | hidden);
    const std::shared_ptr<Session> session = state_.session.lock();
    const WorkingFor working(session);
    // The program may be about another device now.
    std::optional<c10::DeviceGuard> on_device;
    if (state_.order != nullptr) on_device.emplace(backend.device());
    const Nanoseconds searching = engine.statistics().searching;
    const Nanoseconds started = backend.now();
    recipe.op->handle.redispatchBoxed(form.keys, &stack);
    state_.replayed += backend.now() - started - (engine.statistics().searching - searching);
    if (state_.options.soft) take_results(state_, stack, 0);
    state_.replaying = nested;
  } catch (...) {
    state_.replaying = nested;
    state_.owned->keep_running(mark, {}, keep);
    throw;
  }
  take_outputs(op, form, stack, blocks);
  // What the kernel made beside its outputs goes with the tensors.
  stack.clear();
  tensors.clear();
  state_.owned->keep_running(mark, blocks, keep);
  state_.rematerializations.add(recipe.op, recipe.source, op.cost, state_.current);
}

// The replay happens on the current stream, of which the program knows nothing: it waits for whoever wrote
// its inputs, and for whoever used the memory that it is given.
void TorchDevice::order_replay(const Op& op, const std::vector<void*>& inputs,
                               const std::vector<std::size_t>& sizes, const std::vector<BlockId>& blocks) {
  StreamOrder& order = *state_.order;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    order.before_read(inputs[i], sizes[i]);
    const StorageId id = state_.engine->records().value(op.inputs[i].value).storage;
    // Nobody else keeps memory outside of the arena until the replay has read it.
    if (order.several() && state_.engine->records().storage(id).block == kNone) {
      state_.backend.keep_for_stream(state_.constants->storage(id)->_mutable_data_ptr_no_checks());
    }
  }
  for (std::size_t k = 0; k < op.takes_over.size(); ++k) {
    if (op.takes_over[k] == kNone) continue;
    const std::size_t input = op.takes_over[k];
    if (blocks[k] == kNone) {
      order.before_write(inputs[input], sizes[input]);
    } else {
      order.before_reuse(address_in_block(state_, blocks[k], sizes[input]), sizes[input]);
    }
  }
}

// Takes the blocks of what was asked for away from the tensors that the kernel returned.
void TorchDevice::take_outputs(const Op& op, const RecipeForm& form, const torch::jit::Stack& stack,
                               std::vector<BlockId>& blocks) {
  std::uint32_t returned = 0;
  for (const c10::IValue& value : stack) {
    for_tensors(value, [&](const at::Tensor& tensor, std::int32_t) {
      const std::uint32_t index = returned++;
      for (std::size_t k = 0; k < form.results.size(); ++k) {
        if (form.results[k].returned != index || op.outputs[k] == kNone ||
            state_.engine->is_kept(op.outputs[k])) {
          continue;
        }
        c10::StorageImpl* storage = storage_of(tensor);
        TORCH_INTERNAL_ASSERT(storage != nullptr && state_.owned->is_raw(*storage), "remint: ", form.op->name,
                              " ran again and made its output elsewhere");
        c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
        const Bytes offset = state_.region->offset(pointer.get());
        blocks[k] = state_.owned->find_raw(offset)->block;
        state_.owned->erase_raw(offset);
        pointer.release_context();
        pointer = c10::DataPtr(nullptr, state_.backend.device());
      }
    });
  }
}

// The tensor storage of a record; null if the program has none, or is just dropping it.
c10::intrusive_ptr<c10::StorageImpl> TorchDevice::tensor_storage(StorageId id) const {
  OwnedStorage* owned = state_.owned->owner(id);
  if (owned == nullptr) return {};
  c10::intrusive_ptr<c10::StorageImpl> storage = owned->storage.lock();
  if (!storage || storage->_mutable_data_ptr_no_checks().get_context() != owned) return {};
  return storage;
}

void TorchDevice::evicted(StorageId id) {
  if (state_.freed->any()) state_.freed->note_bytes(id);
  if (state_.options.soft) {
    hand_back(state_, state_.arena->block(state_.engine->records().storage(id).block).address,
              state_.nbytes_of(id));
  }
  const c10::intrusive_ptr<c10::StorageImpl> storage = tensor_storage(id);
  if (!storage) return;
  c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  void* owned = pointer.release_context();
  pointer = c10::DataPtr(nullptr, owned, &owned_deleter, state_.backend.device());
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kEvictedMessage);
}

void TorchDevice::materialized(StorageId id) {
  const c10::intrusive_ptr<c10::StorageImpl> storage = tensor_storage(id);
  if (!storage) return;
  c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  void* owned = pointer.release_context();
  pointer = c10::DataPtr(state_.address_of(id), owned, &owned_deleter, state_.backend.device());
  allow_access(*storage);
}

void TorchDevice::moved(StorageId id, Bytes from, Bytes to) {
  if (state_.options.soft) {
    state_.region->native()->rename(from, to);
    return;
  }
  if (state_.order != nullptr) {
    state_.order->before_move(state_.region->at(to), state_.region->at(from), state_.nbytes_of(id));
  }
  state_.backend.move(state_.region->at(to), state_.region->at(from), state_.nbytes_of(id));
  materialized(id);
}

bool TorchDevice::offload(StorageId id) {
  const std::size_t nbytes = state_.nbytes_of(id);
  if (state_.order != nullptr) state_.order->before_read(state_.address_of(id), nbytes);
  const Nanoseconds started = state_.backend.now();
  if (!state_.store->write(id, state_.address_of(id), nbytes)) return false;
  timed(started, nbytes);
  return true;
}

void TorchDevice::fetch(StorageId id, BlockId block) {
  const auto nbytes = static_cast<std::size_t>(state_.engine->records().storage(id).nbytes);
  void* address = state_.region->at(state_.arena->block(block).address);
  if (state_.order != nullptr) state_.order->before_reuse(address, nbytes);
  const Nanoseconds started = state_.backend.now();
  state_.store->read(id, address, nbytes);
  timed(started, nbytes);
}

void TorchDevice::dropped_copy(StorageId id) {
  state_.store->drop(id);
}

ValueId TorchDevice::came_back(StorageId id) {
  return state_.freed->came_back(id);
}

bool TorchDevice::has_bytes_of(ValueId value, StorageId id) {
  return state_.freed->has_bytes_of(value, id);
}

// The bandwidth follows what transfers take, unless it was given. Small ones say more of their latency.
void TorchDevice::timed(Nanoseconds started, std::size_t nbytes) {
  constexpr std::size_t kTelling = 256 << 10;
  constexpr double kWeight = 0.1;
  const Nanoseconds took = state_.backend.now() - started;
  state_.transferred += took;
  if (!state_.options.measure_bandwidth || nbytes < kTelling || took <= 0) return;
  Tier& tier = *state_.engine->tier();
  const double found = static_cast<double>(nbytes) / static_cast<double>(took) * 1e9;
  tier.set_bandwidth((1 - kWeight) * tier.bandwidth() + kWeight * found);
}

}  // namespace remint
