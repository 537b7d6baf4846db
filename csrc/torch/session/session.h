// A session: one open budget.
//
//   operator call ─▶ OpCall and the engine's op driver: arguments resident and locked ─▶ kernel ─▶ outputs
//   adopted kernel ─▶ allocate (eviction happens here) and free the program drops its last tensor on a
//   storage ─▶ the engine releases it another thread, or another budget, reads a tensor ─▶ it is locked, or
//   pinned, meanwhile
//
// One lock guards a session. Those of one budget, one for each device, share it. No thread waits for the lock
// of a session while it has another. A deleter never waits for it: see pending_releases.h.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "torch/dispatch/kernel_call.h"
#include "torch/observe/figures.h"
#include "torch/observe/logs.h"
#include "torch/session/learner.h"
#include "torch/session/op_call.h"
#include "torch/session/releases.h"
#include "torch/session/requests.h"
#include "torch/session/session_lock.h"
#include "torch/session/sleep.h"
#include "torch/session/state.h"
#include "torch/session/thrash_guard.h"
#include "torch/session/torch_device.h"

namespace remint {

class Session final : public std::enable_shared_from_this<Session> {
 public:
  // `partner`: another session of the same budget, of another device; null if there is none.
  static std::shared_ptr<Session> open(const SessionOptions& options, Backend& backend,
                                       const Session* partner = nullptr);
  // Makes everything that the program has resident and ordinary. What can no longer be recomputed is an
  // OutOfMemory, after which the session is closed all the same.
  void close();
  bool closed() const { return closed_; }
  // Around a fork: no other thread is in the middle of a deleter. In the child, a session that another thread
  // was in the middle of stays as it was: true.
  void before_fork() { releases_.pending().before_fork(); }
  bool after_fork(bool in_child);

  // The device that the budget is of.
  c10::Device device() const { return state_.backend.device(); }
  bool is_of(c10::Device device) const { return state_.backend.is_here(device); }
  // Whether the other session is of the same budget.
  bool is_partner(const Session& other) const { return mutex_ == other.mutex_; }
  // Whether this thread runs the kernel of an op of this session.
  bool is_in_kernel_here() const { return mutex_->is_mine() && state_.in_kernel; }
  // Whether `address` is in its arena.
  bool contains(const void* address) const;

  // An operator call of a thread that is inside. The interposed key is excluded.
  void run(const KernelCall& call, const Operator& op, torch::jit::Stack* stack);

  // A step of the program ends, and another one begins.
  void step();
  // The main thread is between two instructions of Python.
  void wake_if_possible();

  // Memory for a thread inside the budget.
  c10::DataPtr allocate(std::size_t nbytes);
  // The device's own allocator finds no free memory; with a soft wall only. True if some was freed.
  bool free_memory();
  // Frees what `allocate` gave and nobody adopted.
  void free(void* address);
  // `stream` uses memory of the arena, where no op shows it.
  void record_stream(void* address, const c10::Stream& stream);
  // The last tensor on a storage is gone.
  void died(OwnedStorage* owned);

  // What can be asked about one tensor storage. False, or nothing, if it is not of this session.
  bool materialize(const c10::StorageImpl* storage);
  bool pin(c10::StorageImpl* storage, PinReason reason);
  // It is about to be written where no operator is seen. Also for storages outside of the arena.
  bool before_write(const c10::StorageImpl* storage, PinReason reason = PinReason::kAddressKnown);
  // The program is about to free its bytes, though it keeps tensors on it.
  void before_free(const c10::StorageImpl* storage);
  // A collective is given these tensors, or returned them: they stay where they are until `collective` has
  // ended. Its threads may have them a moment longer than the program.
  void keep_for(CollectiveInFlight& collective, const torch::jit::Stack& stack, std::size_t first);
  // The call that started the collective returned, after so long.
  void started(CollectiveInFlight collective, Nanoseconds took);
  // The program waited so long for other ranks.
  void note_wait(Nanoseconds took);
  std::optional<bool> is_resident(const c10::StorageImpl* storage);
  std::optional<bool> evict(const c10::StorageImpl* storage);
  // Makes it resident and keeps it where it is until it is unlocked. kNone if it is not of this session.
  ValueId lock_for_read(const c10::StorageImpl* storage);
  void unlock_for_read(ValueId value);

  Figures figures();
  // The smallest budget in which the last step would not become slower than that; 0 if it is not known.
  Bytes budget_for(double max_slowdown);
  LearningFigures learning() {
    const Lock lock(*mutex_);
    return learner_ == nullptr ? LearningFigures() : learner_->figures();
  }
  SleepFigures sleep() {
    const Lock lock(*mutex_);
    return sleep_ == nullptr ? SleepFigures() : sleep_->figures();
  }
  std::vector<std::pair<std::string, Bytes>> pinned_by();
  std::vector<Rematerializations::Row> rematerializations() {
    const Lock lock(*mutex_);
    return state_.rematerializations.rows();
  }
  std::vector<Timeline::Sample> timeline() {
    const Lock lock(*mutex_);
    return logs_.timeline();
  }
  std::vector<DecisionLog::Event> events() {
    const Lock lock(*mutex_);
    return logs_.events();
  }
  Logs::Blocks blocks() {
    const Lock lock(*mutex_);
    return logs_.blocks(state_);
  }
  // What was recorded; null if nothing was to be.
  const Recorder* recorder() const { return logs_.recorder(); }
  const SourceLines* source_lines() const { return logs_.source_lines(); }
  void set_costs(std::vector<GivenCosts::Given> costs) {
    const Lock lock(*mutex_);
    state_.given_costs.set(std::move(costs));
  }
  void check();

  const SessionOptions& options() const { return state_.options; }

 private:
  using Lock = std::unique_lock<SessionMutex>;

  Session(const SessionOptions& options, Backend& backend, const Session* partner);

  void run_locked(const KernelCall& call, const Operator& op, torch::jit::Stack* stack);
  void run_asleep(const KernelCall& call, const Operator& op, torch::jit::Stack* stack);

  const std::shared_ptr<SessionMutex> mutex_;
  SessionState state_;
  TorchDevice device_;
  OpCall call_;
  Releases releases_;
  Requests requests_;
  bool closed_ = false;
  Figures final_;
  Logs logs_;
  std::unique_ptr<Learner> learner_;
  std::unique_ptr<ThrashGuard> thrash_guard_;  // null: a step may take as long as it takes
  std::unique_ptr<Sleep> sleep_;               // null: this session never sleeps
};

}  // namespace remint
