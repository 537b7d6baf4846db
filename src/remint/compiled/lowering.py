"""From a plan to the two fx graphs that carry it out.

fx generates code that drops a value after its last use. So a plan is carried out by placing nodes: each run of an op
is a node of its own where the plan has it, and whoever reads a value reads the node of its latest run. Views and
tuple parts hold no bytes of their own; they are made again from the newest node of what they belong to. The parts of
a tuple are taken right after it, as it keeps all of them alive.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput
from torch._guards import detect_fake_mode

from remint.compiled import random_numbers
from remint.compiled.joint_split import TURN, Training, is_tangent, state_of
from remint.graph import Plan


def lower(training: Training, plan: Plan) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward and the backward graph of a plan, as AOTAutograd expects them of a partitioner.

    The forward returns what it returned before and then what it saves; the backward takes what was saved and then
    the tangents.
    """
    names = [plan.graph.ops[index].name for index in plan.sequence]
    turn = names.index(TURN)
    again = {name for name, count in Counter(names).items() if count > 1}

    forward = _Writer(training, again, _no_value)
    for node in training.placeholders:
        if not is_tangent(node):
            forward.placeholder(node)
    forward.run(names[:turn])
    outputs = forward.results(training.forward_outputs)

    saved: dict[fx.Node, fx.Node] = {}  # what the forward saves, and the input of the backward that gets it

    def load(key: fx.Node | str) -> fx.Node:
        """Make the value of the forward that stands for `key` an input of the backward."""
        value = forward.latest[key]
        # Those that ask for no version check would have to come last; with the check, the order is free.
        value.meta.pop("saved_tensor_with_no_vc_check", None)
        if value not in saved:
            with backward.graph.inserting_before(end_of_saved):
                saved[value] = backward.placeholder(key, like=value)
        return saved[value]

    backward = _Writer(training, again, load, seen=set(names[:turn]))
    end_of_saved = backward.graph.placeholder("tangents_end")
    for node in training.placeholders:
        if is_tangent(node):
            backward.placeholder(node)
    backward.run(names[turn + 1 :])
    gradients = backward.results(training.backward_outputs)
    backward.graph.erase_node(end_of_saved)
    descriptions = training.descriptions
    described = [*descriptions[: len(outputs)], *map(SavedForBackwardsAOTOutput, range(len(saved)))]
    return (
        forward.finish((*outputs, *saved), described),
        backward.finish(gradients, descriptions[len(outputs) :]),
    )


def _no_value(key: fx.Node | str) -> fx.Node:
    raise AssertionError(f"{key} is read in the forward before it is made")


class _Writer:
    """One of the two graphs while it is written: `latest` has the newest node of each value, by its joint node."""

    def __init__(
        self,
        training: Training,
        again: set[str],
        load: Callable[[fx.Node | str], fx.Node],
        seen: set[str] | None = None,
    ) -> None:
        self.training = training
        self.again = again
        self.load = load
        self.seen = seen or set()
        self.graph = fx.Graph()
        self.latest: dict[fx.Node | str, fx.Node] = {}
        self.joint = {node.name: node for node in training.joint.module.graph.nodes}
        self.made = training.storages.made

    def placeholder(self, key: fx.Node | str, like: fx.Node | None = None) -> fx.Node:
        """Add an input, and let it be the newest node of `key`."""
        source = key if isinstance(key, fx.Node) else like
        assert source is not None
        node = self.graph.placeholder(source.name)
        # Arguments are called by their targets, and renamed one by one: a target must not be the name of another node.
        node.target = node.name
        node.meta = dict(source.meta)
        self.latest[key] = node
        return node

    def run(self, names: list[str]) -> None:
        """Place the ops with these names, in order."""
        for name in names:
            if name in self.joint:
                self._op(self.joint[name])
            elif name.removesuffix(".state") in self.again:
                self._state(name)
            self.seen.add(name)

    def results(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the nodes of what a graph returns."""
        return tuple(self._get(node) if isinstance(node, fx.Node) else node for node in outputs)

    def finish(self, outputs: tuple[Any, ...], descriptions: list[Any]) -> fx.GraphModule:
        """Return the module. Nobody asked for some parts of tuples: they go."""
        self.graph.output(outputs).meta["desc"] = descriptions
        for node in reversed(self.graph.nodes):
            if node.op == "call_function" and node.target is operator.getitem and not node.users:
                self.graph.erase_node(node)
        self.graph.lint()
        return fx._lazy_graph_module._make_graph_module(self.training.joint.module, self.graph)

    def _op(self, node: fx.Node) -> None:
        if node.name in self.seen and random_numbers.draws(node):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._get)
            state = self._get(state_of(node.name))
            arguments: Any = (state, node.target, *args)
            placed = self.graph.call_function(random_numbers.replay, arguments, kwargs)
            placed.meta = dict(node.meta)
        else:
            placed = self.graph.node_copy(node, self._get)
        self._forget(node)
        self.latest[node] = placed
        self._parts(node)

    def _state(self, name: str) -> None:
        node = self.joint[name.removesuffix(".state")]
        device = random_numbers.device_of(node)
        placed = self.graph.call_function(random_numbers.take, (device,))
        mode = detect_fake_mode(self.training.joint.inputs)
        assert mode is not None
        with mode:
            placed.meta["val"] = torch.empty(random_numbers.take(device).shape, dtype=torch.uint8)
        self.latest[name] = placed

    def _forget(self, node: fx.Node) -> None:
        """Drop the views of an earlier run."""
        for user in node.users:
            if user.op == "call_function" and not self.made[user.name]:
                self.latest.pop(user, None)
                self._forget(user)

    def _parts(self, node: fx.Node) -> None:
        for user in node.users:
            if user.target is operator.getitem:
                self.latest[user] = self.graph.node_copy(user, self._get)
                self._parts(user)

    def _get(self, node: fx.Node | str) -> fx.Node:
        """Return the newest node of a value, or make a view of it anew."""
        found = self.latest.get(node)
        if found is not None:
            return found
        if isinstance(node, fx.Node) and node.op == "get_attr":
            found = self.graph.node_copy(node)
        elif isinstance(node, fx.Node) and self._is_view(node):
            found = self.graph.node_copy(node, self._get)
        else:
            found = self.load(node)
        self.latest[node] = found
        return found

    def _is_view(self, node: fx.Node) -> bool:
        if node.op != "call_function" or self.made[node.name]:
            return False
        source = node.args[0]
        return node.target is not operator.getitem or (isinstance(source, fx.Node) and self._is_view(source))
