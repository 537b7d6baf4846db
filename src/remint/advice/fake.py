"""Advice about a step that is not run: captured with fake tensors, which have no memory, and costs from a roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from remint.advice.answers import Question, answer, trace_holders
from remint.advice.devices import Device
from remint.advice.fake_modules import converted_modules
from remint.capture.costs import Cost, work_of
from remint.capture.joint_graph import Joint, trace_joint
from remint.capture.storages import find_storages, to_graph
from remint.graph import Graph
from remint.graph.trace_conversion import trace_from_graph
from remint.results.advice import Advice
from remint.results.holders import Holder
from remint.simulator.budget_choices import MeasuredSteps

# Bytes of optimizer state per byte of trained weights.
OPTIMIZER_STATE = {"sgd": 0, "momentum": 1, "adam": 2}

Step = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any] | None, Callable[[Any], Any] | None]


def advise_fake(
    make: Callable[[], Step],
    *,
    subject: str,
    device: Device,
    optimizer: str = "adam",
    fits: int | str | None = None,
    accept: float = 1.1,
) -> Advice:
    """Return advice about the step that `make` returns: a model, its arguments, keywords and loss function.

    `make` is called with fake tensors: a model of any size takes no memory. All of it counts: weights, gradients,
    optimizer state, inputs. By default the question is whether it fits on the device.
    """
    if optimizer not in OPTIMIZER_STATE:
        raise ValueError(f"optimizer is one of {', '.join(OPTIMIZER_STATE)}, not {optimizer!r}")
    fits = device.memory_bytes if fits is None else fits
    question = Question(subject, is_script=False, fits=fits, accepted=accept, plan=False)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with converted_modules():
            model, args, kwargs, loss = make()
        joint = trace_joint(model, args, kwargs or {}, loss)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    graph = _graph(joint, device)
    weights = sum(graph.constants.get(name, 0) for name in trained)
    state = OPTIMIZER_STATE[optimizer] * weights
    trace, _ = trace_from_graph(graph)
    steps = MeasuredSteps(
        trace=trace,
        num_steps=1,
        plain_seconds=trace.seconds,
        recorded_seconds=trace.seconds,
        beside_bytes=state,
    )
    holders = [holder for holder in trace_holders(trace) if holder.kind != "pinned"]
    names = {name for name, _ in model.named_parameters()}
    for kind, chosen in (("weights", names), ("inputs", set(graph.constants) - names)):
        sizes = [graph.constants[name] for name in chosen if graph.constants.get(name)]
        holders.append(Holder(kind, "", len(sizes), sum(sizes)))
    holders.append(Holder("optimizer state", optimizer, len(trained), state))
    found = tuple(sorted((holder for holder in holders if holder.nbytes), key=lambda holder: -holder.nbytes))
    estimated = f"nothing was run; the time is what {device.name} takes at its peak rates, so real steps take longer"
    return replace(answer(question, steps, holders=found, outside=()), estimated=estimated)


def _graph(joint: Joint, device: Device) -> Graph:
    storages = find_storages(joint)
    return to_graph(joint, storages, _estimate(joint, storages.made, device))


def _estimate(joint: Joint, needed: Mapping[str, Any], device: Device) -> dict[str, Cost]:
    """Return a roofline of each node: no workspaces."""
    nodes = [node for node in joint.module.graph.nodes if needed.get(node.name)]
    return {node.name: Cost(_seconds(node, device)) for node in nodes}


def _seconds(node: fx.Node, device: Device) -> float:
    moved, flops, dtype = work_of(node)
    return device.seconds_per_call + max(flops / device.flops(dtype), moved / device.bytes_per_second)
