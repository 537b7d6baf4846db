"""What each op costs on this machine: measured by running it, or estimated by a roofline.

A measurement belongs to a signature: operator, shapes, dtypes, strides, other arguments. Each new signature is warmed
up and repeated, and the fastest run counts, since other processes can only add time. Ops with the same signature share
one measurement, so repeated layers cost exactly the same.

There are two ways to get at the inputs. Either the step runs once on real tensors, op by op. Or each op runs apart
from the others, on stand-ins for its inputs, which needs no more memory than one op takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from remint.capture.joint_graph import Joint
from remint.capture.stand_ins import stand_ins, tensors_in
from remint.capture.workspaces import Workspace, measure_workspace

# A node and its arguments.
Call = tuple[fx.Node, Any, Any]

REPEATS = 7
SECONDS_PER_OP = 0.15
WARM_UP = 2

# Roofline of a plain CPU core and its memory: only ratios between ops matter to a planner.
FLOPS_PER_SECOND = 50e9
BYTES_PER_SECOND = 10e9
SECONDS_PER_CALL = 3e-6


class Cost(NamedTuple):
    """Of running an op once: seconds, workspace bytes, and bytes of its results beyond what their shapes take."""

    seconds: float
    scratch: int = 0
    excess: int = 0


def measure(
    joint: Joint,
    needed: Mapping[str, Any],
    *,
    apart: bool = False,
    known: MutableMapping[str, Cost] | None = None,
) -> dict[str, Cost]:
    """Return what each node named in `needed` costs.

    With `apart`, ops run one by one on stand-ins for their inputs, and the inputs of `joint` may be fake. `known`
    holds what was measured before, by signature; what is new is added to it.
    """
    known = {} if known is None else known
    keys: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for node, args, kwargs in _each(joint) if apart else _run(joint):
        if needed.get(node.name):
            key = keys[node.name] = _signature(node, args, kwargs)
            if key not in known and key not in seconds:
                try:
                    seconds[key] = _time(node, *stand_ins((args, kwargs)))
                except Exception:
                    # A stand-in can be a value that the op does not take, an index out of range for one.
                    if not apart:
                        raise
                    known[key] = Cost(_roofline(node))
    if seconds:
        calls = _each(joint) if apart else _run(joint)
        for key, (scratch, excess) in _workspaces(calls, keys, set(seconds)).items():
            known[key] = Cost(seconds[key], scratch, excess)
    return {name: known[key] for name, key in keys.items()}


def _each(joint: Joint) -> Iterator[Call]:
    """Yield each op with fake inputs, and run none."""

    def fake(node: fx.Node) -> Any:
        return node.meta["val"] if "val" in node.meta else getattr(joint.module, str(node.target))

    for node in joint.module.graph.nodes:
        if node.op == "call_function":
            yield node, *fx.node.map_arg((node.args, node.kwargs), fake)


def _run(joint: Joint) -> Iterator[Call]:
    """Run the step on its real inputs, freeing as it goes; yield each op before it runs."""
    last = {source: node for node in joint.module.graph.nodes for source in node.all_input_nodes}
    values: dict[fx.Node, Any] = {}
    queue = iter(joint.inputs)
    for node in joint.module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(queue).detach()
        elif node.op == "get_attr":
            values[node] = getattr(joint.module, node.target)
        elif node.op != "output":
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
            yield node, args, kwargs
            with torch.no_grad():
                values[node] = node.target(*args, **kwargs)
            del args, kwargs
            for source in node.all_input_nodes:
                if last[source] is node and source.op != "placeholder":
                    del values[source]


def estimate(joint: Joint, needed: Mapping[str, Any]) -> dict[str, Cost]:
    """Return what each node named in `needed` costs, from its arithmetic and its bytes: no workspaces."""
    return {node.name: Cost(_roofline(node)) for node in joint.module.graph.nodes if needed.get(node.name)}


def _roofline(node: fx.Node) -> float:
    moved, flops, _ = work_of(node)
    return SECONDS_PER_CALL + max(flops / FLOPS_PER_SECOND, moved / BYTES_PER_SECOND)


def work_of(node: fx.Node) -> tuple[int, int, torch.dtype]:
    """Return the bytes that a node reads and writes, its floating-point operations, and the type of its result."""
    from torch.utils.flop_counter import flop_registry

    result = node.meta.get("val")
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    moved = sum(_nbytes(t) for t in tensors_in((args, kwargs, result)))
    counter = flop_registry.get(getattr(node.target, "overloadpacket", node.target))
    flops = 0 if counter is None else int(counter(*args, **kwargs, out_val=result))
    made = tensors_in(result)
    return moved, flops, made[0].dtype if made else torch.float32


def _time(node: fx.Node, args: Any, kwargs: Any) -> float:
    state = torch.get_rng_state()
    end = time.perf_counter() + SECONDS_PER_OP
    # The CPU time of this thread leaves out what others on the machine take. With several threads it would also leave
    # out the time in which this one sleeps until the others are done.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: list[float] = []
    for _ in range(WARM_UP + REPEATS):
        begin = clock()
        with torch.no_grad():
            node.target(*args, **kwargs)  # type: ignore[operator]
        times.append(clock() - begin)
        if time.perf_counter() > end and len(times) > 1:
            break
    torch.set_rng_state(state)
    return min(times[1:])


def _workspaces(calls: Iterator[Call], keys: Mapping[str, str], wanted: set[str]) -> dict[str, Workspace]:
    """Return the workspace of each wanted signature."""
    found: dict[str, Workspace] = {}
    state = torch.get_rng_state()
    for node, *call in calls:
        key = keys.get(node.name)
        if key in wanted and key not in found:
            args, kwargs = stand_ins(call)
            found[key] = measure_workspace(node, args, kwargs)
    torch.set_rng_state(state)
    return found


def _signature(node: fx.Node, args: Any, kwargs: Any) -> str:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    parts = [_layout(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return f"{node.target} {parts} {spec}"


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), tensor.dtype, str(tensor.device)


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
