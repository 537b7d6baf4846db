#include "torch/session/unrecorded_calls.h"

#include <chrono>
#include <utility>

#include "torch/dispatch/arguments.h"
#include "torch/dispatch/tags.h"
#include "torch/dispatch/threads.h"
#include "torch/dispatch/visit.h"
#include "torch/session/op_call.h"
#include "torch/session/owned_storages.h"
#include "torch/session/session.h"

namespace remint {
namespace {

// Also after an error, locks end with the Works that were started.
void call_collective(Session& session, const KernelCall& call, torch::jit::Stack* stack, std::size_t first) {
  struct Started {
    Session& session;
    CollectiveInFlight collective;
    std::chrono::steady_clock::time_point begin;
    ~Started() {
      session.started(std::move(collective), std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                 std::chrono::steady_clock::now() - begin)
                                                 .count());
    }
  } started{session, {}, {}};
  session.keep_for(started.collective, *stack, first);
  note_collective();
  started.begin = std::chrono::steady_clock::now();
  {
    const GatherWorks gather(started.collective.works);
    call(stack);
  }
  session.keep_for(started.collective, *stack, first);
}

}  // namespace

void run_nested(Session& session, SessionState& state, OpCall& outer, const KernelCall& call,
                const Operator& op, torch::jit::Stack* stack) {
  Visit visit;
  const std::size_t first = stack->size() - op.writes.size();
  for (std::size_t a = 0; !op.view && a < op.writes.size(); ++a) {
    for_tensors((*stack)[first + a], [&](const at::Tensor& tensor, std::int32_t) {
      c10::StorageImpl* storage = storage_of(tensor);
      if (storage == nullptr || storage->nbytes() == 0 || !is_tagged(tensor) || outer.touches(storage))
        return;
      OwnedStorage* owned = state.owned->find(storage);
      if (owned == nullptr && state.owned->is_raw(*storage)) return;  // the kernel made it
      outer.note_hidden_input();
      if (op.writes[a] == Operator::Write::kNo) {
        visit.read(tensor);
        return;
      }
      TORCH_CHECK(owned == nullptr || state.storage_of(owned->value).pinned, "remint: ", state.current->name,
                  " writes a tensor that is not among its arguments, so remint cannot keep what was computed "
                  "from it. "
                  "Make it an argument and declare it in mutates_args.");
      session.before_write(storage);
    });
  }
  if (op.collective) {
    call_collective(session, call, stack, first);
  } else {
    call(stack);
  }
}

void run_captured(Session& session, const KernelCall& call, const Operator& op, torch::jit::Stack* stack) {
  const std::size_t first = stack->size() - op.writes.size();
  for (std::size_t a = 0; a < op.writes.size(); ++a) {
    for_tensors((*stack)[first + a], [&](const at::Tensor& tensor, std::int32_t) {
      c10::StorageImpl* storage = storage_of(tensor);
      if (storage == nullptr || storage->nbytes() == 0) return;
      TORCH_CHECK(session.is_resident(storage).value_or(true), "remint: ", op.name,
                  " is captured in a graph and reads a tensor that was evicted. To recompute it here would "
                  "become part of the graph. Call remint.pin(tensor) before the capture.");
      if (op.writes[a] != Operator::Write::kNo) session.before_write(storage);
      session.pin(storage, PinReason::kAddressKnown);
    });
  }
  call(stack);
}

void run_collective(Session& session, const KernelCall& call, const Operator& op, torch::jit::Stack* stack) {
  const std::size_t first = stack->size() - op.writes.size();
  for (std::size_t a = 0; a < op.writes.size(); ++a) {
    if (op.writes[a] == Operator::Write::kNo) continue;
    for_tensors((*stack)[first + a], [&](const at::Tensor& tensor, std::int32_t) {
      c10::StorageImpl* storage = storage_of(tensor);
      if (storage != nullptr && storage->nbytes() > 0) session.before_write(storage, PinReason::kCollective);
    });
  }
  call_collective(session, call, stack, first);
}

}  // namespace remint
