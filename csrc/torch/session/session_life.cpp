// The life of a session and of what it holds: opening, adoption, death, closing.
#include <algorithm>
#include <cstring>
#include <utility>

#include "torch/session/session.h"

namespace remint {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

}  // namespace

void held_deleter(void* context) {
  auto* held = static_cast<Held*>(context);
  // The session must outlive the call, of which its last reference may be a part.
  const std::shared_ptr<Session> session = held->session;
  session->died(held);
}

void loose_deleter(void* address) {
  if (address == nullptr) return;
  if (std::shared_ptr<Session> session = Regions::session_of(address)) {
    session->free(address);
  } else if (!Regions::free_survivor(address)) {
    ordinary_allocator()->raw_deleter()(address);
  }
}

Held* holder_of(const c10::StorageImpl* storage) {
  const c10::DataPtr& pointer = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &held_deleter ? static_cast<Held*>(pointer.get_context()) : nullptr;
}

Session::Session(const SessionOptions& options) : options_(options) {
  auto arena = std::make_unique<Arena>(options.budget, options.alignment);
  arena_ = arena.get();
  region_ = std::make_shared<Region>(arena->budget());
  engine_ = std::make_unique<Engine>(options.engine, std::move(arena), *this);
  engine_->note_dropped(&dropped_);
  if (options.events) engine_->add_observer(&events_);
  if (options.timeline) engine_->add_observer(&timeline_);
  if (options.blocks) engine_->add_observer(&block_log_);
  note_maker(nullptr);
  if (options.record) recorder_ = std::make_unique<Recorder>();
  if (options.source_lines) source_lines_ = std::make_unique<SourceLines>();
}

std::shared_ptr<Session> Session::open(const SessionOptions& options) {
  install();
  std::shared_ptr<Session> session(new Session(options));
  Regions::add(session->region_, session);
  return session;
}

Held* Session::adopt(c10::StorageImpl* storage, void* address, ValueId value, const Operator* made_by) {
  auto* held = new Held{
      shared_from_this(), value,
      c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)),
      made_by, Why::kNone};
  c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  pointer.release_context();
  pointer = c10::DataPtr(address, held, &held_deleter, kCpu);
  set_holder(value, held);
  return held;
}

// A storage in the arena that no op has made: nothing can make it again.
void Session::adopt_loose(Touched& touched) {
  void* address = touched.storage->_mutable_data_ptr_no_checks().get();
  auto found = loose_.find(region_->offset(address));
  TORCH_INTERNAL_ASSERT(found != loose_.end(), "remint: memory of the arena that is not known");
  forget_dropped();
  touched.value = engine_->adopt_constant(found->second.block, found->second.nbytes, found->second.number);
  loose_.erase(found);
  touched.held = adopt(touched.storage, address, touched.value, nullptr);
  touched.held->why = Why::kNoRecipe;
}

void Session::set_holder(ValueId value, Held* held) {
  const StorageId id = engine_->records().value(value).storage;
  if (id >= holders_.size()) holders_.resize(std::max<std::size_t>(id + 1, holders_.size() * 2), nullptr);
  holders_[id] = held;
}

void Session::died(Held* held) {
  std::unique_lock<std::recursive_mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || busy_) {
    std::lock_guard<std::mutex> pending(pending_mutex_);
    pending_deaths_.push_back(held);
    any_pending_ = true;
    return;
  }
  if (closed_) {
    delete held;
    return;
  }
  release(held);
  forget_dropped();
}

void Session::release(Held* held) {
  set_holder(held->value, nullptr);
  if (recorder_ != nullptr) recorder_->about(EventKind::kRelease, number_of(held->value));
  engine_->release(held->value);
  delete held;
}

void Session::settle() {
  if (any_pending_) {
    std::vector<Held*> deaths;
    std::vector<void*> frees;
    {
      std::lock_guard<std::mutex> pending(pending_mutex_);
      deaths.swap(pending_deaths_);
      frees.swap(pending_frees_);
      any_pending_ = false;
    }
    for (Held* held : deaths) release(held);
    for (void* address : frees) free(address);
  }
  forget_dropped();
}

void Session::forget() {
  // What is let go of below can drop more; the vectors are used again, because this happens after every op.
  Records::Dropped dropped = std::move(forgetting_);
  std::swap(dropped, dropped_);
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> gone = std::move(gone_);
  for (StorageId id : dropped.storages) {
    if (id < holders_.size()) holders_[id] = nullptr;
    if (id >= kept_.size() || !kept_[id].storage) continue;
    Kept& kept = kept_[id];
    constants_.erase(kept.storage.get());
    if (recorder_ != nullptr && !kept.retired) recorder_->about(EventKind::kRelease, kept.number);
    gone.push_back(std::move(kept.storage));
  }
  for (StorageId id : dropped.cached) {
    Kept& kept = kept_[id];
    if (recorder_ != nullptr && !kept.retired) recorder_->about(EventKind::kRelease, kept.number);
    if (kept.retired) {
      constants_.erase(kept.storage.get());
      engine_->drop_cached(engine_->records().storage(id).values[0]);
    }
    gone.push_back(std::move(kept.storage));
  }
  for (std::uint64_t tag : dropped.ops) {
    constexpr std::size_t kSpare = 64;
    std::unique_ptr<Recipe> recipe(reinterpret_cast<Recipe*>(tag));
    recipe->clear();
    if (spare_recipes_.size() < kSpare) spare_recipes_.push_back(std::move(recipe));
  }
  gone.clear();
  dropped.clear();
  gone_ = std::move(gone);
  forgetting_ = std::move(dropped);
}

// Recipes may read this constant, which is elsewhere.
void Session::keep(ValueId constant, c10::intrusive_ptr<c10::StorageImpl> storage) {
  const StorageId id = engine_->records().value(constant).storage;
  if (id >= kept_.size()) kept_.resize(std::max<std::size_t>(id + 1, kept_.size() * 2));
  ValueId& known = constants_.emplace(storage.get(), constant).first->second;
  // One that rests, of a storage that was at the same address.
  if (known != constant) engine_->drop_cached(std::exchange(known, constant));
  kept_[id] = {std::move(storage), number_of(constant)};
}

void Session::pin_held(Held* held, Why why) {
  const StorageId id = engine_->records().value(held->value).storage;
  if (held->why == Why::kNone) held->why = why;
  const bool fix = why == Why::kHandedOut || why == Why::kAsked;
  const Storage& storage = engine_->records().storage(id);
  if (recorder_ != nullptr && (!storage.pinned || (fix && !storage.fixed)))
    recorder_->about(fix ? EventKind::kFix : EventKind::kPin, number_of(held->value));
  if (!storage.pinned) engine_->pin(held->value);
  if (fix) engine_->fix(held->value);
}

namespace {

// The engine at work outside of an op.
class Working {
 public:
  explicit Working(bool& busy) : busy_(busy), before_(busy) { busy = true; }
  ~Working() { busy_ = before_; }

 private:
  bool& busy_;
  const bool before_;
};

}  // namespace

void Session::materialize(Held* held) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (closed_ || busy_) return;
  settle();
  try {
    Working working(busy_);
    if (recorder_ != nullptr) recorder_->about(EventKind::kMaterialize, number_of(held->value));
    engine_->materialize(held->value);
  } catch (const OutOfMemory& error) {
    fail(error);
  }
  forget_dropped();
}

void Session::pin(Held* held, Why why) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (closed_) return;
  try {
    Working working(busy_);
    pin_held(held, why);
  } catch (const OutOfMemory& error) {
    fail(error);
  }
  forget_dropped();
}

void Session::pin_loose(c10::StorageImpl* storage) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  if (closed_ || busy_ || loose_.count(region_->offset(pointer.get())) == 0) return;
  Working working(busy_);
  Touched touched;
  touched.storage = storage;
  adopt_loose(touched);
  pin_held(touched.held, Why::kHandedOut);
}

void Session::before_write(Held* held) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (closed_) return;
  try {
    Working working(busy_);
    engine_->before_write(held->value);
  } catch (const OutOfMemory& error) {
    fail(error);
  }
  forget_dropped();
}

void Session::before_write(const c10::StorageImpl* elsewhere) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (closed_ || busy_) return;
  settle();
  auto known = constants_.find(elsewhere);
  if (known == constants_.end()) return;
  try {
    Working working(busy_);
    engine_->before_write(known->second);
  } catch (const OutOfMemory& error) {
    fail(error);
  }
  forget_dropped();
}

bool Session::is_resident(Held* held) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return closed_ || engine_->defined(held->value);
}

bool Session::evict(Held* held) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (closed_ || busy_) return false;
  settle();
  const bool gone = engine_->evict_value(held->value);
  forget_dropped();
  return gone;
}

// Moves a held, resident storage to ordinary memory.
void Session::move_out(Held* held) {
  c10::intrusive_ptr<c10::StorageImpl> storage = held->storage.lock();
  if (!storage || holder_of(storage.get()) != held) return;
  const StorageId id = engine_->records().value(held->value).storage;
  const auto nbytes = static_cast<std::size_t>(engine_->records().storage(id).nbytes);
  c10::DataPtr copy = ordinary_allocator()->allocate(nbytes);
  std::memcpy(copy.get(), address_of(id), nbytes);
  c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  pointer.release_context();
  pointer = std::move(copy);
  const Arena::Block block = arena_->block(engine_->records().storage(id).block);
  engine_->move_out(held->value);
  region_->give_back(block.address, block.nbytes);
  keep(held->value, storage);
  holders_[id] = nullptr;
  engine_->release(held->value);
  delete held;
  forget_dropped();
}

// Leaves everything that the program holds resident, in the arena if it fits: first what is there is pinned,
// so that it is not evicted for the rest, then what is missing is made, in the order of the program. What was
// made is pinned, so there is less missing each time around.
void Session::materialize_all() {
  for (;;) {
    std::map<std::uint64_t, Held*> resident;
    std::map<std::uint64_t, Held*> missing;
    for (Held* held : holders_) {
      if (held == nullptr) continue;
      (engine_->defined(held->value) ? resident : missing)[number_of(held->value)] = held;
    }
    if (missing.empty()) return;
    for (const auto& [number, held] : resident) {
      try {
        engine_->pin(held->value);
      } catch (const OutOfMemory&) {
        // The engine wanted to settle something else first.
      }
    }
    for (const auto& [number, held] : missing) {
      try {
        engine_->pin(held->value);
      } catch (const OutOfMemory&) {
        // What is there goes to ordinary memory.
        for (const auto& [other, there] : resident) {
          if (engine_->defined(there->value)) move_out(there);
        }
        resident.clear();
        engine_->pin(held->value);
      }
      resident[number] = held;
    }
  }
}

void Session::close() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (closed_) return;
  settle();
  busy_ = true;
  std::exception_ptr failure;
  try {
    materialize_all();
  } catch (...) {
    failure = std::current_exception();
  }
  forget_dropped();
  final_ = figures();
  std::unordered_map<Bytes, Bytes> survivors;
  for (Held* held : holders_) {
    if (held == nullptr || !engine_->defined(held->value)) continue;
    c10::intrusive_ptr<c10::StorageImpl> storage = held->storage.lock();
    if (!storage || holder_of(storage.get()) != held) continue;
    c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
    void* address = pointer.get();
    survivors[region_->offset(address)] =
        engine_->records().storage(engine_->records().value(held->value).storage).nbytes;
    pointer.release_context();
    pointer = c10::DataPtr(address, address, &loose_deleter, kCpu);
    delete held;
  }
  holders_.clear();
  for (const auto& [offset, loose] : loose_) survivors[offset] = loose.nbytes;
  for (BlockId id = arena_->first(); id != kNone; id = arena_->block(id).next) {
    const Arena::Block& block = arena_->block(id);
    if (survivors.count(block.address) == 0) region_->give_back(block.address, block.nbytes);
  }
  closed_ = true;
  busy_ = false;
  engine_->records().for_ops([](const Op& op) { delete reinterpret_cast<Recipe*>(op.tag); });
  engine_.reset();
  arena_ = nullptr;
  loose_.clear();
  constants_.clear();
  kept_.clear();
  Regions::close(region_, std::move(survivors));
  {
    std::lock_guard<std::mutex> pending(pending_mutex_);
    for (Held* held : pending_deaths_) delete held;
    for (void* address : pending_frees_) Regions::free_survivor(address);
    pending_deaths_.clear();
    pending_frees_.clear();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace remint
