// Bytes come and go: allocation, eviction, and running an op again.
#include <ATen/Context.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>

#include "torch/session/clock.h"
#include "torch/session/session.h"

namespace remint {
namespace {

const char* const kEvictedMessage =
    "This tensor was evicted by remint.budget, and its bytes are read around PyTorch's dispatcher, where "
    "remint cannot "
    "see it. Call remint.materialize(tensor) before the read, or remint.pin(tensor) if the address is kept.";

const c10::Device kCpu(c10::DeviceType::CPU);
constexpr std::size_t kNumber = 64;

// The default generator as an op left it, whatever happens in between.
class GeneratorGuard {
 public:
  explicit GeneratorGuard(const RandomState* state) {
    if (state == nullptr) return;
    generator_ = at::detail::getDefaultCPUGenerator();
    before_ = RandomState::of(generator_);
    state->restore(*cpu());
  }
  ~GeneratorGuard() {
    if (before_ != nullptr) before_->restore(*cpu());
  }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  at::CPUGeneratorImpl* cpu() {
    return static_cast<at::CPUGeneratorImpl*>(generator_.unsafeGetGeneratorImpl());
  }
  at::Generator generator_;
  std::unique_ptr<RandomState> before_;
};

}  // namespace

c10::DataPtr Session::allocate(std::size_t nbytes) {
  if (nbytes == 0) return {nullptr, nullptr, &loose_deleter, kCpu};
  std::unique_lock<std::recursive_mutex> lock(mutex_);
  // A number is no larger than the header of its tensor, which is not in the arena either; in it, it would
  // stand in the way of every window, and to make an evicted loss again would take the whole forward.
  if (closed_ || (nbytes <= kNumber && (!busy_ || !options_.chaos)))
    return ordinary_allocator()->allocate(nbytes);
  const auto size = static_cast<Bytes>(nbytes);
  BlockId block = kNone;
  try {
    if (!busy_) {
      settle();
      busy_ = true;
      try {
        block = engine_->allocate_raw(size);
      } catch (...) {
        busy_ = false;
        throw;
      }
      busy_ = false;
    } else {
      block = engine_->allocate(size);
    }
  } catch (const OutOfMemory& error) {
    if ((replaying_ && !may_spill_) || retry_) throw;
    if (options_.spill) return spill(nbytes);
    fail(error);
  }
  const Bytes offset = arena_->block(block).address;
  loose_[offset] = Loose{block, size, busy_, busy_ ? 0 : next_number_++};
  if (busy_) running_.push_back(offset);
  if (recorder_ != nullptr && !busy_) recorder_->constant(size, kRaw);
  if (recorder_ != nullptr && busy_ && !replaying_) recorder_->request(offset, size);
  void* address = region_->at(offset);
  return {address, address, &loose_deleter, kCpu};
}

void Session::free(void* address) {
  std::unique_lock<std::recursive_mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    std::lock_guard<std::mutex> pending(pending_mutex_);
    pending_frees_.push_back(address);
    any_pending_ = true;
    return;
  }
  if (closed_) {
    lock.unlock();
    Regions::free_survivor(address);
    return;
  }
  auto found = loose_.find(region_->offset(address));
  if (found == loose_.end()) return;
  if (found->second.running) {
    engine_->free(found->second.block);
    if (recorder_ != nullptr && !replaying_) recorder_->gave_back(found->first);
  } else {
    engine_->free_raw(found->second.block, found->second.nbytes);
    if (recorder_ != nullptr) recorder_->about(EventKind::kRelease, found->second.number);
  }
  loose_.erase(found);
}

void* Session::address_of(StorageId id) const {
  const Storage& storage = engine_->records().storage(id);
  if (storage.block != kNone) return region_->at(arena_->block(storage.block).address);
  TORCH_INTERNAL_ASSERT(id < kept_.size() && kept_[id].storage, "remint: a storage without an address");
  return kept_[id].storage->_mutable_data_ptr_no_checks().get();
}

void Session::evicted(StorageId id) {
  Held* held = id < holders_.size() ? holders_[id] : nullptr;
  if (held == nullptr) return;
  c10::intrusive_ptr<c10::StorageImpl> storage = held->storage.lock();
  if (!storage) return;  // it is just dying
  c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  if (pointer.get_context() != held) return;
  pointer.release_context();
  pointer = c10::DataPtr(nullptr, held, &held_deleter, kCpu);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kEvictedMessage);
}

void Session::materialized(StorageId id) {
  Held* held = id < holders_.size() ? holders_[id] : nullptr;
  if (held == nullptr) return;
  c10::intrusive_ptr<c10::StorageImpl> storage = held->storage.lock();
  if (!storage) return;
  c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  if (pointer.get_context() != held) return;
  pointer.release_context();
  pointer = c10::DataPtr(address_of(id), held, &held_deleter, kCpu);
  storage->clear_data_ptr_access_error_msg_();
}

void Session::moved(StorageId id, Bytes from, Bytes to) {
  std::memmove(region_->at(to), region_->at(from),
               static_cast<std::size_t>(engine_->records().storage(id).nbytes));
  materialized(id);
}

// Runs an op again: the same kernel, on tensors that look the same, with the same random numbers, as much out
// of the program's sight as can be.
void Session::run(const Op& op, std::vector<BlockId>& blocks) {
  Engine& engine = *engine_;
  const Recipe& recipe = *reinterpret_cast<const Recipe*>(op.tag);
  TORCH_CHECK(!recipe.op->gone, "remint: ", recipe.op->name,
              " has to run again, but its library was removed. Keep the library, or pin what it makes "
              "(remint.pin).");
  const Records& records = engine.records();
  auto address = [&](BlockId block) { return region_->at(arena_->block(block).address); };
  // Where each input is; one that is written in place may be worked on in a copy.
  std::vector<void*> inputs(op.inputs.size());
  std::vector<std::size_t> sizes(op.inputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const StorageId id = records.value(op.inputs[i].value).storage;
    inputs[i] = address_of(id);
    const bool elsewhere = records.storage(id).block == kNone;
    sizes[i] = elsewhere ? kept_[id].storage->nbytes() : static_cast<std::size_t>(records.storage(id).nbytes);
  }
  for (std::size_t k = 0; k < op.takes_over.size(); ++k) {
    if (op.takes_over[k] == kNone || blocks[k] == kNone) continue;
    void*& from = inputs[op.takes_over[k]];
    std::memcpy(address(blocks[k]), from, sizes[op.takes_over[k]]);
    from = address(blocks[k]);
  }
  std::vector<at::Tensor> tensors;
  std::vector<c10::DataPtr> scratch;
  tensors.reserve(recipe.slots.size());
  for (const Recipe::Slot& slot : recipe.slots) {
    switch (slot.kind) {
      case Recipe::Slot::Kind::kInput:
        tensors.push_back(slot.look.tensor_at(inputs[slot.index], sizes[slot.index]));
        break;
      case Recipe::Slot::Kind::kOutput: {
        const Bytes nbytes = recipe.results[slot.index].nbytes;
        if (blocks[slot.index] == kNone) blocks[slot.index] = engine.allocate(nbytes);
        tensors.push_back(slot.look.tensor_at(address(blocks[slot.index]), static_cast<std::size_t>(nbytes)));
        break;
      }
      case Recipe::Slot::Kind::kScratch:
        scratch.push_back(ordinary_allocator()->allocate(slot.look.nbytes()));
        std::memset(scratch.back().get(), 0, slot.look.nbytes());
        tensors.push_back(slot.look.tensor_at(scratch.back().get(), slot.look.nbytes()));
        break;
      case Recipe::Slot::Kind::kEmpty:
        tensors.push_back(slot.look.tensor_at(nullptr, 0));
        break;
    }
  }
  torch::jit::Stack stack = make_stack(recipe, tensors);
  const bool own_generator = recipe.random != nullptr && recipe.op->generator >= 0;
  if (own_generator) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
    recipe.random->restore(*static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl()));
    stack[static_cast<std::size_t>(recipe.op->generator)] = generator;
  }
  const bool nested = replaying_;
  try {
    GeneratorGuard generator(own_generator ? nullptr : recipe.random.get());
    c10::AutoGradMode grad_mode(recipe.grad_mode);
    const c10::DispatchKeySet hidden({kKey, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                      c10::DispatchKey::PythonDispatcher});
    c10::impl::ForceDispatchKeyGuard keys(
        recipe.local_keys.included_.add(kKey) - (hidden - c10::DispatchKeySet(kKey)),
        recipe.local_keys.excluded_ | hidden);
    WorkingFor working(this);
    replaying_ = true;
    const Nanoseconds searching = engine.statistics().searching;
    const Clock::time_point started = Clock::now();
    recipe.op->handle.redispatchBoxed(recipe.keys, &stack);
    replayed_ += since(started) - (engine.statistics().searching - searching);
    replaying_ = nested;
  } catch (...) {
    replaying_ = nested;
    keep_running({});
    throw;
  }
  // The blocks of what was asked for; the rest goes with the tensors.
  std::uint32_t returned = 0;
  for (const c10::IValue& value : stack) {
    for_tensors(value, [&](const at::Tensor& tensor, std::int32_t) {
      const std::uint32_t index = returned++;
      for (std::size_t k = 0; k < recipe.results.size(); ++k) {
        if (recipe.results[k].returned != index || op.outputs[k] == kNone || engine.defined(op.outputs[k]))
          continue;
        c10::DataPtr& pointer = tensor.unsafeGetTensorImpl()
                                    ->unsafe_storage()
                                    .unsafeGetStorageImpl()
                                    ->_mutable_data_ptr_no_checks();
        TORCH_INTERNAL_ASSERT(pointer.get_deleter() == &loose_deleter && region_->contains(pointer.get()),
                              "remint: ", recipe.op->name, " ran again and made its output elsewhere");
        const Bytes offset = region_->offset(pointer.get());
        blocks[k] = loose_.at(offset).block;
        loose_.erase(offset);
        pointer.release_context();
        pointer = c10::DataPtr(nullptr, kCpu);
      }
    });
  }
  stack.clear();
  tensors.clear();
  keep_running(blocks);
  OperatorStatistics& statistics = by_operator_[{recipe.op, recipe.source}];
  ++statistics.num_rematerializations;
  statistics.rematerialized += op.cost;
  ++statistics.needed_by[current_];
}

void Session::warn_of_spilling() {
  if (warned_) return;
  warned_ = true;
  TORCH_WARN("remint: the budget cannot hold what ", current_ != nullptr ? current_->name : "the program",
             " asks for; what does not fit is taken from ordinary memory from here on (overflow=\"spill\"). "
             "run.spilled_bytes says how much.");
}

c10::DataPtr Session::spill(std::size_t nbytes) {
  warn_of_spilling();
  spilled_ += static_cast<Bytes>(nbytes);
  return ordinary_allocator()->allocate(nbytes);
}

// Moves what is resident to ordinary memory, what is pinned first, until `nbytes` are free. No kernel is
// running, and nothing may point to a Held. False if there is nothing left to move.
bool Session::spill_resident(Bytes nbytes) {
  warn_of_spilling();
  std::vector<Held*> candidates;
  const Records& records = engine_->records();
  auto storage_of = [&](const Held* held) -> const Storage& {
    return records.storage(records.value(held->value).storage);
  };
  for (Held* held : holders_) {
    if (held == nullptr || !engine_->defined(held->value)) continue;
    const Storage& storage = storage_of(held);
    if (storage.block != kNone && !storage.fixed && !storage.locked()) candidates.push_back(held);
  }
  std::sort(candidates.begin(), candidates.end(), [&](const Held* a, const Held* b) {
    const Storage& s = storage_of(a);
    const Storage& t = storage_of(b);
    if (s.pinned != t.pinned) return s.pinned;
    return s.nbytes != t.nbytes ? s.nbytes > t.nbytes : a->value < b->value;
  });
  Bytes moved = 0;
  for (Held* held : candidates) {
    if (moved >= nbytes) break;
    const Bytes size = storage_of(held).nbytes;
    move_out(held);
    moved += size;
  }
  spilled_ += moved;
  return moved > 0;
}

}  // namespace remint
