// The engine's books, added up again from the records and compared with what the engine counts as it goes.
#include <stdexcept>
#include <string>

#include "engine/state.h"

namespace remint {

void check_books(const EngineState& state) {
  auto fail = [](const std::string& what) { throw std::logic_error("engine: " + what); };
  state.memory->check();
  if (state.memory->used() > state.memory->budget()) fail("the budget is exceeded");
  if (state.running.size() != 1 || state.running.in_kernel()) fail("an op is still running");
  if (!state.running.innermost().blocks.empty()) fail("a block belongs to no op");
  Bytes resident = 0;
  Bytes pinned = 0;
  Bytes fixed = 0;
  Bytes copies = 0;
  Bytes clean_copies = 0;
  Bytes candidates = 0;
  for (StorageId id = 0; id < state.records.num_storage_slots(); ++id) {
    const Storage& s = state.records.storage(id);
    if (!s.in_use()) continue;
    // A block can be larger than its storage: a kernel may ask for more than the output needs.
    const bool resident_here =
        s.residency == Residency::kResident || s.residency == Residency::kResidentWithCopy;
    if (resident_here) {
      resident += state.arena == nullptr ? s.nbytes : state.arena->block(s.block).nbytes;
      if (state.arena != nullptr && state.arena->block(s.block).owner != id)
        fail("a block has another owner");
    } else if (s.block != kNone) {
      fail("a storage that is not resident has a block");
    }
    if (s.pinned) pinned += s.nbytes;
    if (s.pinned && s.fixed) fixed += s.nbytes;
    const bool has_copy = s.residency == Residency::kOffloaded || s.residency == Residency::kResidentWithCopy;
    if (has_copy && state.tier == nullptr) fail("a copy is in no tier");
    if (has_copy) copies += state.tier->footprint(s.nbytes);
    if (s.residency == Residency::kResidentWithCopy) clean_copies += state.tier->footprint(s.nbytes);
    const bool is_clean = state.tier != nullptr && state.tier->is_clean(id);
    if (is_clean != (s.residency == Residency::kResidentWithCopy))
      fail("the clean copies are not those of resident storages");
    if (s.locks != 0) fail("a lock was left behind");
    std::uint32_t read_locks = 0;
    for (const ReadLock& lock : state.read_locks) {
      const StorageId named = state.records.value(lock.value).storage;
      if (named == id) ++read_locks;
      if (lock.bytes == id && named != id) ++read_locks;
    }
    if (s.read_locks != read_locks) fail("locks for reads are miscounted");
    const bool candidate = state.may_leave(s) && s.read_locks == 0;
    if (candidate != state.candidates.contains(id))
      fail("the candidates are not what is resident and unpinned");
    if (candidate) candidates += state.memory->footprint(s.nbytes);
    for (ValueId value : s.values) {
      if (state.defined(value) && !s.has_bytes()) fail("a value without bytes is defined");
      if (state.records.value(value).offloaded && s.residency != Residency::kOffloaded)
        fail("a value is offloaded, and its storage is not");
    }
  }
  // Blocks that belong to no storage are raw.
  if (state.arena != nullptr) {
    for (BlockId id = state.arena->first(); id != kNone; id = state.arena->block(id).next) {
      if (state.arena->block(id).owner == Arena::kNoRecord) resident += state.arena->block(id).nbytes;
    }
  }
  if (resident != state.memory->used()) fail("resident bytes are miscounted");
  if (pinned != state.pinned_bytes) fail("pinned bytes are miscounted");
  if (fixed != state.fixed_bytes) fail("fixed bytes are miscounted");
  if (state.tier != nullptr && (copies != state.tier->used() || clean_copies != state.tier->clean_bytes()))
    fail("the bytes in the tier are miscounted");
  if (candidates != state.candidates.footprint()) fail("the bytes of the candidates are miscounted");
}

}  // namespace remint
