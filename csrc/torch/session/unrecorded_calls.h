// Operator calls that have no recipe: calls inside of another op's kernel, and collectives.
#pragma once

#include "torch/dispatch/kernel_call.h"
#include "torch/dispatch/operators.h"
#include "torch/session/state.h"

namespace remint {

class OpCall;

// A call that the kernel of a custom op, `outer`, makes. It is part of that op: nothing is recorded. But a
// tensor of the budget that is not among the op's arguments must be there, and makes the op one that cannot
// be repeated.
void run_nested(Session& session, SessionState& state, OpCall& outer, const KernelCall& call,
                const Operator& op, torch::jit::Stack* stack);

// A call that becomes part of a graph, which runs later with the same addresses: its tensors stay where they
// are.
void run_captured(Session& session, const KernelCall& call, const Operator& op, torch::jit::Stack* stack);
// A collective waits for other ranks and for threads of its own, which may allocate and free: it runs without
// the lock. It is never run again, so it is not recorded. Its tensors are locked until its Work has ended.
// Then those that it only read are as they were before; those that it wrote cannot be recomputed, but may be
// moved.
void run_collective(Session& session, const KernelCall& call, const Operator& op, torch::jit::Stack* stack);

}  // namespace remint
