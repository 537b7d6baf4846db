"""What each op costs here: measured by running it, or estimated by a roofline.

Measured: the step is run once on real tensors, op by op; an op whose signature (operator, shapes, dtypes,
strides, other arguments) is new is warmed up and repeated, and the median counts. Ops with the same signature
share one measurement, so that repeated layers cost exactly the same.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from remint.capture.joint import Joint

REPEATS = 7
SECONDS_PER_OP = 0.15
WARM_UP = 2
_MARK = "remint.op."

# Roofline of a plain CPU core and its memory: only ratios between ops matter to a planner.
FLOPS_PER_SECOND = 50e9
BYTES_PER_SECOND = 10e9
SECONDS_PER_CALL = 3e-6


def measure(joint: Joint, needed: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, int]]:
    """Return seconds and workspace bytes per node named in `needed`."""
    keys: dict[str, Any] = {}
    seconds: dict[Any, float] = {}
    for node, args, kwargs in _run(joint):
        if needed.get(node.name):
            key = keys[node.name] = _signature(node, args, kwargs)
            if key not in seconds:
                seconds[key] = _time(node, args, kwargs)
    scratch = _workspaces(joint, keys)
    return {name: seconds[key] for name, key in keys.items()}, {name: scratch[key] for name, key in keys.items()}


def _run(joint: Joint) -> Iterator[tuple[fx.Node, Any, Any]]:
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


def estimate(joint: Joint, needed: Mapping[str, Any]) -> dict[str, float]:
    """Return seconds per node named in `needed`, from its arithmetic and its bytes."""
    from torch.utils.flop_counter import flop_registry

    seconds = {}
    for node in joint.module.graph.nodes:
        if not needed.get(node.name):
            continue
        result = node.meta.get("val")
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        moved = sum(_nbytes(t) for t in _tensors((args, kwargs, result)))
        counter = flop_registry.get(getattr(node.target, "overloadpacket", node.target))
        flops = 0
        if counter is not None:
            flops = int(counter(*args, **kwargs, out_val=result))
        seconds[node.name] = SECONDS_PER_CALL + max(flops / FLOPS_PER_SECOND, moved / BYTES_PER_SECOND)
    return seconds


def _time(node: fx.Node, args: Any, kwargs: Any) -> float:
    state = torch.get_rng_state()
    end = time.perf_counter() + SECONDS_PER_OP
    times: list[float] = []
    for _ in range(WARM_UP + REPEATS):
        begin = time.perf_counter()
        with torch.no_grad():
            node.target(*args, **kwargs)  # type: ignore[operator]
        now = time.perf_counter()
        times.append(now - begin)
        if now > end and len(times) > 1:
            break
    torch.set_rng_state(state)
    return statistics.median(times[WARM_UP:] if len(times) > WARM_UP else times[1:])


def _workspaces(joint: Joint, keys: Mapping[str, Any]) -> dict[Any, int]:
    """Return per signature the bytes an op holds at its peak beyond what it returns (allocator events)."""
    kept: dict[Any, int] = {}
    marks: list[Any] = []
    state = torch.get_rng_state()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as run:
        for node, args, kwargs in _run(joint):
            key = keys.get(node.name)
            if key is None or key in kept:
                continue
            with torch.no_grad(), torch.profiler.record_function(f"{_MARK}{len(marks)}"):
                result = node.target(*args, **kwargs)  # type: ignore[operator]
            marks.append(key)
            old = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
            fresh = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in _tensors(result)}
            kept[key] = sum(nbytes for address, nbytes in fresh.items() if address not in old)
            del result
    torch.set_rng_state(state)
    events = list(run.profiler.kineto_results.events())
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    scratch = dict.fromkeys(kept, 0)
    for event in events:
        if event.name().startswith(_MARK):
            key = marks[int(event.name()[len(_MARK) :])]
            begin, end = event.start_ns(), event.start_ns() + event.duration_ns()
            now = peak = 0
            for _, nbytes in changes[bisect_left(changes, (begin, -(2**62))) : bisect_left(changes, (end, 2**62))]:
                now += nbytes
                peak = max(peak, now)
            scratch[key] = max(0, peak - kept[key])
    return scratch


def _signature(node: fx.Node, args: Any, kwargs: Any) -> Any:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    parts = tuple(
        (tuple(x.shape), x.stride(), x.dtype, x.device) if isinstance(x, torch.Tensor) else repr(x) for x in leaves
    )
    return node.target, parts, str(spec)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
