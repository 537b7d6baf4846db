"""From an fx graph of tensors to a Graph of storages: views, tuple parts and aliases collapse into what holds
bytes.

Which tensors share a storage is observed, not guessed from operator names: the graph is run on fake tensors,
which alias as real ones do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode

from remint.capture.costs import Cost
from remint.capture.joint_graph import Joint
from remint.capture.stand_ins import tensors_in
from remint.graph import Graph, Op


@dataclass(frozen=True)
class Storages:
    """Per fx node the storages it makes (name → bytes), those it reads and those its result is in; views make none."""

    made: Mapping[str, Mapping[str, int]]
    read: Mapping[str, tuple[str, ...]]
    holding: Mapping[str, tuple[str, ...]]
    constants: Mapping[str, int]
    outputs: tuple[str, ...]


@dataclass
class _Observer:
    names: dict[int, str] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)  # an address means nothing once its storage is gone

    def name(self, tensor: torch.Tensor) -> str | None:
        return self.names.get(tensor.untyped_storage()._cdata)

    def known(self, tensor: torch.Tensor) -> str:
        return self.names[tensor.untyped_storage()._cdata]

    def add(self, tensor: torch.Tensor, name: str) -> int:
        storage = tensor.untyped_storage()
        self.names[storage._cdata] = name
        self.alive.append(storage)
        return int(storage.nbytes())


def find_storages(joint: Joint) -> Storages:
    """Run the joint graph on fake tensors and note which storages each node makes and reads.

    The inputs may be fake already.
    """
    mode = detect_fake_mode(joint.inputs) or FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [
        mode.from_tensor(t, static_shapes=True) if type(t) in (torch.Tensor, torch.nn.Parameter) else t
        for t in joint.inputs
    ]
    seen = _Observer()
    constants: dict[str, int] = {}
    # Inputs that share a storage (tied weights, views) are one constant.
    first: dict[int, int] = {}
    for place, (real, fake) in enumerate(zip(joint.inputs, fakes, strict=True)):
        if not isinstance(fake, torch.Tensor):
            continue  # a size
        address = real.untyped_storage()._cdata
        if address in first:
            seen.names[fake.untyped_storage()._cdata] = joint.input_names[first[address]]
            seen.alive.append(fake.untyped_storage())
            continue
        first[address] = place
        seen.add(fake, joint.input_names[place])
        constants[joint.input_names[place]] = int(real.untyped_storage().nbytes())

    made: dict[str, dict[str, int]] = {}
    read: dict[str, tuple[str, ...]] = {}
    values: dict[fx.Node, Any] = {}
    outputs: list[str] = []
    queue = iter(fakes)
    with mode, torch.no_grad():
        for node in joint.module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(queue)
            elif node.op == "get_attr":
                attribute = getattr(joint.module, node.target)
                values[node] = attribute
                if isinstance(attribute, torch.Tensor):
                    fake = mode.from_tensor(attribute, static_shapes=True)
                    values[node] = fake
                    constants[node.name] = seen.add(fake, node.name)
            elif node.op == "output":
                for tensor in tensors_in(fx.node.map_arg(node.args, lambda n: values[n])):
                    name = seen.name(tensor)
                    if name is not None and name not in constants and name not in outputs:
                        outputs.append(name)
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
                result = values[node] = node.target(*args, **kwargs)
                made[node.name] = {}
                for place, tensor in enumerate(tensors_in(result)):
                    if seen.name(tensor) is None:
                        name = node.name if isinstance(result, torch.Tensor) else f"{node.name}.{place}"
                        made[node.name][name] = seen.add(tensor, name)
                used = (seen.name(t) for t in tensors_in((args, kwargs)))
                read[node.name] = tuple(dict.fromkeys(name for name in used if name is not None))
    holding = {node.name: tuple(dict.fromkeys(map(seen.known, tensors_in(value)))) for node, value in values.items()}
    return Storages(made, read, holding, constants, tuple(outputs))


def to_graph(joint: Joint, storages: Storages, costs: Mapping[str, Cost]) -> Graph:
    """Return the Graph of the nodes that make storages."""
    ops: list[Op] = []
    for node in joint.module.graph.nodes:
        if not storages.made.get(node.name):
            continue
        outputs = outputs_of(node, storages, costs[node.name])
        ops.append(
            Op(
                node.name,
                costs[node.name].seconds,
                storages.read[node.name],
                outputs,
                repeatable(node),
                joint.sources.get(node.name, ""),
            )
        )
    return Graph(tuple(ops), storages.constants, storages.outputs)


def outputs_of(node: fx.Node, storages: Storages, cost: Cost) -> dict[str, int]:
    """Return the bytes that an op makes, with its workspace, which nobody reads."""
    outputs = dict(storages.made[node.name])
    if cost.excess:
        outputs[next(iter(outputs))] += cost.excess
    if cost.scratch:
        outputs[f"{node.name}.workspace"] = cost.scratch
    return outputs


def repeatable(node: fx.Node) -> bool:
    """Whether running a node twice leaves the world as running it once does."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or not schema.is_mutable
