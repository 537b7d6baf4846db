// What is asked of a session about single tensors, outside of the ops of the program: by users, by other
// threads and budgets, by collectives, and by the kernel that is running. All under the session's lock.
#pragma once

#include <optional>

#include "torch/session/op_call.h"
#include "torch/session/releases.h"
#include "torch/session/state.h"
#include "torch/session/thrash_guard.h"

namespace remint {

class Requests {
 public:
  Requests(SessionState& state, OpCall& call, Releases& releases)
      : state_(state), call_(call), releases_(releases) {}

  // Each is false, or nothing, if the storage is not of this session.
  bool materialize(const c10::StorageImpl* storage);
  bool pin(c10::StorageImpl* storage, PinReason reason);
  bool before_write(const c10::StorageImpl* storage, PinReason reason);
  // The program is about to free its bytes, though it keeps tensors on it.
  void before_free(const c10::StorageImpl* storage);
  std::optional<bool> is_resident(const c10::StorageImpl* storage);
  std::optional<bool> evict(const c10::StorageImpl* storage);
  ValueId lock_for_read(const c10::StorageImpl* storage);
  void unlock_for_read(ValueId value);

  void pin_results(const torch::jit::Stack& stack, std::size_t first, PinReason reason);
  void keep_for(CollectiveInFlight& collective, const torch::jit::Stack& stack, std::size_t first);
  void started(CollectiveInFlight collective, Nanoseconds took);

  // Has the engine do something outside of an op, or in the middle of one that runs in this thread. It is
  // done again after a failure for want of memory, if other threads released some, or something spills.
  // `subject`, if there is one, does not: it is what the act is about.
  template <typename Act>
  void work(Act&& act, const OwnedStorage* subject = nullptr);

 private:
  void note_read(ValueId value);
  // Memory ran out while the engine worked. Returns if it is to try again.
  void make_room(const OutOfMemory& error, const OwnedStorage* subject);

  SessionState& state_;
  OpCall& call_;
  Releases& releases_;
};

template <typename Act>
void Requests::work(Act&& act, const OwnedStorage* subject) {
  if (state_.thrash_guard != nullptr) state_.thrash_guard->set_limit();
  for (bool done = false; !done;) {
    try {
      const Busy busy(state_.busy);
      act();
      done = true;
    } catch (const OutOfMemory& error) {
      make_room(error, subject);
    } catch (const Thrash&) {
      state_.forget_dropped();
      state_.thrash_guard->raise();
    }
  }
  state_.forget_dropped();
}

}  // namespace remint
