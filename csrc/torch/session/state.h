// What the parts of a session share. Each part is a class of its own; `Session` guards all of it with one
// lock.
//
//   OwnedStorages     which tensor storage is which record; raw memory of the arena
//   FreedSources      bytes that the program freed and will write again, such as FSDP's parameters
//   OutsideConstants  storages outside of the arena that recipes read: weights made before the budget
//   OpCall            one operator call, for the op driver
//   TorchDevice       runs recorded ops again; points tensors to where their bytes are
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "memory/arena.h"
#include "torch/backends/backend.h"
#include "torch/observe/block_makers.h"
#include "torch/observe/rematerializations.h"
#include "torch/observe/session_observer.h"
#include "torch/observe/source_lines.h"
#include "torch/session/bookkeeping.h"
#include "torch/session/costs.h"
#include "torch/session/offload_store.h"
#include "torch/session/owned_storage.h"
#include "torch/session/recipe.h"
#include "torch/session/region.h"

namespace remint {

struct SessionOptions {
  Bytes budget = 0;
  EngineOptions engine;
  bool chaos = false;              // evict everything after every op
  bool spill = false;              // take what does not fit from ordinary memory
  std::string offload_folder;      // of the tier's file; empty: it is memory of the host
  bool measure_bandwidth = false;  // of the tier
  bool soft = false;               // the device's own allocator stays, and asks for memory when it runs out
  bool timeline = false;           // keep the bytes in use after each op
  bool events = false;             // keep the decisions
  bool blocks = false;             // keep what becomes of every block
  bool record = false;             // take notes of the op stream
  double max_slowdown = 0.0;       // of a step; more is an error. 0: no limit
  bool learn = false;              // know a step that comes again, and guide the engine through it
  bool several = false;            // the budget has sessions of other devices, too
  // The command of the process that plans learned steps; empty: none does.
  std::vector<std::string> planner;
  bool sleep = false;         // do without the dispatch key while a program that is learned fits
  bool source_lines = false;  // know the line of the program that each op came from
};

class FreedSources;
class Learner;
class OwnedStorages;
class OutsideConstants;
class Sleep;
class ThrashGuard;

struct SessionState {
  SessionState(const SessionOptions& options, Backend& backend);
  ~SessionState();

  const SessionOptions options;
  Backend& backend;
  std::weak_ptr<Session> session;  // the one that this is the state of
  const Session* self = nullptr;   // the same, to compare with
  std::shared_ptr<Region> region;
  Arena* arena = nullptr;
  std::unique_ptr<Engine> engine;
  Records::Dropped dropped;
  RecipeTable recipes;
  std::unique_ptr<OwnedStorages> owned;
  std::unique_ptr<OutsideConstants> constants;
  std::unique_ptr<FreedSources> freed;
  std::unique_ptr<OffloadStore> store;  // null: there is no tier
  CostEstimates costs;
  GivenCosts given_costs;
  // On devices whose kernels run after their calls have returned; null on others.
  const std::unique_ptr<StreamOrder> order;
  const std::unique_ptr<KernelTimer> timer;

  // What is going on.
  bool busy = false;                  // an op is running, or the engine is at work
  bool replaying = false;             // an op is running again
  bool in_kernel = false;             // the kernel of an op of the program is running
  bool last_try = true;               // the kernel is not run once more if it finds no memory
  const Operator* current = nullptr;  // the op of the program that is running
  std::uint32_t source = kNone;       // the line it came from

  std::uint64_t next_number = 0;  // of the next tensor: the tag of its value
  StepNumbers step_numbers;       // of the step at hand, if steps are learned
  SessionObserver no_observer;
  SessionObserver* observer = &no_observer;
  Learner* learner = nullptr;           // null: it does not learn
  Sleep* sleep = nullptr;               // null: it never sleeps
  ThrashGuard* thrash_guard = nullptr;  // null: a step may take as long as it takes
  Rematerializations rematerializations;
  BlockMakers block_makers;
  Bytes spilled = 0;
  Bytes ordinary_before = 0;  // what the device's own allocator had given out when the arena was there
  bool warned_of_spilling = false;
  Bytes failed_need = 0;        // what was needed at once when something did not fit
  Nanoseconds transferred = 0;  // to the tier and back, by the clock
  Nanoseconds in_kernels = 0;   // of the program's ops, by the clock, without searches
  Nanoseconds replayed = 0;     // in kernels that ran again, without searches
  Bookkeeping bookkeeping;
  // In collectives, and in waits for them: mostly the time of other ranks. It is in no op's cost.
  Nanoseconds collectives = 0;

  std::uint64_t number_of(ValueId value) const { return engine->records().value(value).tag; }
  const Storage& storage_of(ValueId value) const {
    return engine->records().storage(engine->records().value(value).storage);
  }

  // The engine dropped records: what they kept goes, too. To be called before the engine makes new ones,
  // which may have the same ids.
  void forget_dropped() {
    while (!dropped.empty()) forget();
  }
  // Where the bytes of a storage are, in the arena or outside of it, and how many there are.
  void* address_of(StorageId id) const;
  std::size_t nbytes_of(StorageId id) const;
  // Pins what the program has as `owned`; `reason` says whether its address must stay, too.
  void pin(OwnedStorage* owned, PinReason reason);
  // The kernel ended: addresses that it handed out stay from now on.
  void fix_late();

 private:
  void forget();

  // Empty; they keep their memory for the next time.
  Records::Dropped forgetting_;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> gone_;
  std::vector<OwnedStorage*> fix_late_;
};

// Says that the engine is at work.
class Busy {
 public:
  explicit Busy(bool& busy) : busy_(busy), before_(std::exchange(busy, true)) {}
  ~Busy() { busy_ = before_; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  bool& busy_;
  const bool before_;
};

}  // namespace remint
