// A session: one open budget. It is the engine's device for real tensors.
//
//   operator call ─▶ run: inputs resident and locked ─▶ kernel ─▶ new storages adopted, op recorded
//   kernel ─▶ allocate (eviction happens here) and free
//   last reference to a tensor dies ─▶ the engine lets go of its storage
//
// A storage is *held* while the program has a tensor on it: the context of its DataPtr is then a `Held`, and
// the deleter tells the session that the program let go. Memory of the arena that no op made is *loose* (a
// factory's, scratch that outlived its op): nothing of it is evicted. Storages elsewhere (weights made before
// the budget) are constants without a block; the session keeps them alive while a recipe reads them.
//
// One lock guards a session. A deleter never waits for it, since it may hold the GIL that the owner of the
// lock waits for: what cannot be done at once is pending until the next op.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "memory/arena.h"
#include "torch/dispatch/operators.h"
#include "torch/observe/recorder.h"
#include "torch/observe/source_lines.h"
#include "torch/session/costs.h"
#include "torch/session/recipe.h"
#include "torch/session/region.h"

namespace remint {

class Session;

// How an operator call goes on: to the kernels below, or to a kernel of another layout that was in its place.
struct Call {
  const c10::OperatorHandle& op;
  c10::DispatchKeySet keys;
  const c10::SafeKernelFunction* kernel = nullptr;
  void operator()(torch::jit::Stack* stack) const {
    if (kernel == nullptr) {
      op.redispatchBoxed(keys, stack);
    } else {
      kernel->callBoxed(op, keys, stack);
    }
  }
};

// Why a storage is pinned, as far as the session itself decided it.
enum class Why : std::uint8_t { kNone, kNoRecipe, kParameter, kGradient, kHandedOut, kAsked };

struct Held {
  std::shared_ptr<Session> session;
  ValueId value = kNone;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const Operator* made_by = nullptr;
  Why why = Why::kNone;
};

struct SessionOptions {
  Bytes budget = 0;
  EngineOptions engine;
  Bytes alignment = 64;
  bool chaos = false;
  bool spill = false;
  bool timeline = false;
  bool events = false;
  bool blocks = false;        // keep what becomes of every block
  bool record = false;        // take notes of the op stream
  bool source_lines = false;  // know the line of the program that each op came from
};

// What was rematerialized, by the operator that did it and the line it came from.
struct OperatorStatistics {
  const Operator* op = nullptr;
  SourceLines::Place place;
  std::uint64_t num_rematerializations = 0;
  Nanoseconds rematerialized = 0;
  // By the op of the program that needed it; null: a read, or the end.
  std::map<const Operator*, std::uint64_t> needed_by;
};

class Session final : public Device, public std::enable_shared_from_this<Session> {
 public:
  static std::shared_ptr<Session> open(const SessionOptions& options);
  // Makes everything that the program holds resident and ordinary. What can no longer be made is an
  // OutOfMemory, after which the session is closed all the same.
  void close();
  bool closed() const { return closed_; }
  // Whether no other thread is in the middle of something here.
  bool at_rest() { return std::unique_lock<std::recursive_mutex>(mutex_, std::try_to_lock).owns_lock(); }

  // An operator call of the program.
  void run(const Call& call, torch::jit::Stack* stack);

  // Memory for a thread inside the budget.
  c10::DataPtr allocate(std::size_t nbytes);
  // Frees what `allocate` gave and nobody adopted.
  void free(void* address);
  // The last tensor on a storage is gone.
  void died(Held* held);

  // The escape hatches. False if the tensor is not of this session.
  void materialize(Held* held);
  void pin(Held* held, Why why);
  // The address of memory that no op has touched was handed out.
  void pin_loose(c10::StorageImpl* storage);
  void before_write(Held* held);
  void before_write(const c10::StorageImpl* elsewhere);
  bool is_resident(Held* held);
  bool evict(Held* held);

  struct Figures {
    Statistics statistics;
    std::uint64_t num_scores = 0;
    std::uint64_t num_storages = 0;
    Bytes budget = 0;
    Bytes peak = 0;
    Bytes used = 0;
    Bytes pinned = 0;
    Bytes needed = 0;
    Bytes spilled = 0;
    Nanoseconds bookkeeping = 0;
  };
  Figures figures();
  std::vector<OperatorStatistics> by_operator();
  std::vector<Timeline::Sample> timeline();
  std::vector<DecisionLog::Event> events();
  // From this number on, tensors were made by this op (null: by none), which came from this line.
  struct Maker {
    std::uint64_t first_number;
    const Operator* op;
    std::uint32_t source;
  };
  // What became of every block, and who made the tensors that its tags are the numbers of. The tag of a mark
  // is its place in `kMarks`.
  struct Blocks {
    std::vector<BlockEvent> events;
    std::vector<Maker> makers;
  };
  static constexpr const char* kMarks[] = {"backward", "end of backward"};
  Blocks block_log();
  // What was recorded; null if nothing was to be.
  const Recorder* recorder() const { return recorder_.get(); }
  const SourceLines* source_lines() const { return source_lines_.get(); }
  std::vector<std::pair<std::string, Bytes>> pinned_by();
  void check();

  // Where costs come from, instead of the clock: per op that the program runs, its cost and the bytes it
  // makes.
  struct Given {
    Nanoseconds cost;
    Bytes nbytes;
  };
  void set_costs(std::vector<Given> costs);

  const SessionOptions& options() const { return options_; }

 private:
  explicit Session(const SessionOptions& options);

  // A storage that the op at hand touches.
  struct Touched {
    c10::StorageImpl* storage = nullptr;
    Held* held = nullptr;  // null: not of this session
    ValueId value = kNone;
    std::uint32_t input = kNone;   // its place among the inputs of the recipe
    std::uint32_t output = kNone;  // its place among the outputs of the recipe
    Operator::Write write = Operator::Write::kNo;
    bool whole = true;  // every tensor that is written is all of the storage
    bool read = false;
    std::uint64_t number = 0;  // while recording: that of its value before the op
  };
  // A tensor among the arguments.
  struct Use {
    std::uint32_t argument = 0;
    std::int32_t element = -1;
    const at::Tensor* tensor = nullptr;
    std::uint32_t touched = kNone;  // kNone: no bytes
  };
  // A storage that the op at hand made, and which of all returned tensors is on it.
  struct Fresh {
    c10::StorageImpl* storage;
    std::uint32_t returned;
  };
  struct Loose {
    BlockId block = kNone;
    Bytes nbytes = 0;
    bool running = false;
    std::uint64_t number = 0;  // unless it is running
  };

  // Device.
  class SessionOp;
  void run(const Op& op, std::vector<BlockId>& blocks) override;
  void evicted(StorageId storage) override;
  void materialized(StorageId storage) override;
  void moved(StorageId storage, Bytes from, Bytes to) override;

  // Steps of `run`.
  void look_at(const Operator& op, const torch::jit::Stack& stack, std::size_t first);
  void look_at(const Operator& op, std::uint32_t argument, std::int32_t element, const at::Tensor& tensor,
               Operator::Write write);
  void identify(Touched& touched, bool written);
  void prepare_writes(const Operator& op);
  std::unique_ptr<Recipe> write_recipe(const Operator& op, c10::DispatchKeySet keys,
                                       const torch::jit::Stack& stack, std::size_t first);
  Bytes describe_made(const Operator& op, Recipe* recipe, const torch::jit::Stack& stack, std::size_t first,
                      Nanoseconds cost, std::uint64_t signature, std::vector<BlockId>& blocks);
  void record_arguments(bool recorded);
  void note_pass();
  void note_maker(const Operator* op);
  void hold_written(const Operator& op);
  void pin_gradients(const torch::jit::Stack& stack, std::size_t first);
  void pin_results(const torch::jit::Stack& stack, std::size_t first, Why why, bool integers_only);

  Held* adopt(c10::StorageImpl* storage, void* address, ValueId value, const Operator* made_by);
  void adopt_loose(Touched& touched);
  void set_holder(ValueId value, Held* held);
  void keep_running(const std::vector<BlockId>& outputs);
  std::uint64_t number_of(ValueId value) const { return engine_->records().value(value).tag; }
  void pin_held(Held* held, Why why);
  void release(Held* held);
  void add_constant(Touched& touched);
  void let_go_of_unlocked_constants();
  void* address_of(StorageId storage) const;
  void settle();  // what is pending
  // The engine dropped records: what they kept goes, too. To be called before the engine makes new ones,
  // which may have the same ids.
  void forget_dropped() {
    while (!dropped_.empty()) forget();
  }
  void forget();
  std::unique_ptr<Recipe> new_recipe();
  void keep(ValueId constant, c10::intrusive_ptr<c10::StorageImpl> storage);
  void let_go_of_unused_constants();
  void materialize_all();
  void move_out(Held* held);
  [[noreturn]] void fail(const OutOfMemory& error);
  std::string why_pinned(StorageId storage) const;
  void warn_of_spilling();
  c10::DataPtr spill(std::size_t nbytes);
  bool spill_resident(Bytes nbytes);

  const SessionOptions options_;
  std::recursive_mutex mutex_;
  bool busy_ = false;       // an op is running, or the engine is at work
  bool replaying_ = false;  // an op is running again
  bool closed_ = false;
  bool may_spill_ = false;
  bool retry_ = false;  // the kernel is run once more if it runs out of memory
  bool warned_ = false;
  std::shared_ptr<Region> region_;
  std::unique_ptr<Engine> engine_;
  Arena* arena_ = nullptr;
  Records::Dropped dropped_;
  // Empty; room for the next time.
  Records::Dropped forgetting_;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> gone_;
  std::vector<std::unique_ptr<Recipe>> spare_recipes_;
  std::vector<Held*> holders_;              // by storage
  ska::flat_hash_map<Bytes, Loose> loose_;  // by offset
  std::vector<Bytes> running_;              // offsets of what the running op allocated
  ska::flat_hash_map<const c10::StorageImpl*, ValueId> constants_;  // elsewhere
  struct Kept {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    std::uint64_t number = 0;
    bool retired = false;  // the program let go of it
    bool used = true;      // since constants were looked through the last time
  };
  std::vector<Kept> kept_;  // the same, by storage; null: no constant elsewhere, or one that rests
  std::size_t constants_until_look_ = 64;

  // The op at hand.
  const Operator* current_ = nullptr;
  bool recordable_ = true;
  std::vector<Use> uses_;
  std::vector<Touched> touched_;
  std::vector<Fresh> fresh_;
  std::vector<ValueId> unlocked_constants_;
  std::vector<ValueId> acquired_;
  OpDescription description_;
  std::size_t num_written_ = 0;
  bool opaque_ = false;
  std::vector<ValueId> outputs_;

  CostEstimates costs_;
  std::vector<Given> given_costs_;
  std::size_t next_cost_ = 0;
  // By operator and source line.
  std::map<std::pair<const Operator*, std::uint32_t>, OperatorStatistics> by_operator_;
  Timeline timeline_;
  DecisionLog events_;
  BlockLog block_log_;
  std::vector<Maker> makers_;
  bool backward_ = false;          // the last op was part of a backward pass; only known where it is noted
  std::uint64_t next_number_ = 0;  // of the next tensor: the tag of its value
  std::unique_ptr<Recorder> recorder_;
  bool recording_op_ = false;  // the op at hand is to be recorded
  std::unique_ptr<SourceLines> source_lines_;
  std::uint32_t source_ = kNone;  // of the op at hand
  Figures final_;
  Nanoseconds bookkeeping_ = 0;  // around ops of the program, without replays and searches
  Nanoseconds replayed_ = 0;     // in kernels that ran again, without searches
  Bytes spilled_ = 0;
  Bytes failed_need_ = 0;  // what was needed at once when something did not fit

  std::mutex pending_mutex_;
  std::atomic<bool> any_pending_{false};
  std::vector<Held*> pending_deaths_;
  std::vector<void*> pending_frees_;
};

// Makes this thread allocate for a session that runs an op again, which need not be the one it is inside of.
class WorkingFor {
 public:
  explicit WorkingFor(Session* session);
  ~WorkingFor();
  WorkingFor(const WorkingFor&) = delete;
  WorkingFor& operator=(const WorkingFor&) = delete;

 private:
  Session* before_;
};

// The session that this thread is inside of; null outside of all budgets.
Session* current_session();
// Enters or, with null, leaves. Returns the session that was current before.
std::shared_ptr<Session> enter_session(std::shared_ptr<Session> session);

// Takes over CPU memory and operator calls, once per process.
void install();
c10::Allocator* ordinary_allocator();
constexpr c10::DispatchKey kKey = c10::DispatchKey::CustomRNGKeyId;

void held_deleter(void* held);
void loose_deleter(void* address);
// What holds the storage of `tensor`, if a session does.
Held* holder_of(const c10::StorageImpl* storage);

// Raises remint.BudgetError with this text.
[[noreturn]] void raise_budget_error(const std::string& message, Bytes min_budget);

}  // namespace remint
