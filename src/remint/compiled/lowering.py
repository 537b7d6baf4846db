"""From a plan to the two fx graphs that carry it out.

fx generates code that drops a value after its last use. So a plan is carried out by placing nodes: each run of an op
is a node of its own where the plan has it, and whoever reads a value reads the node of its latest run. Views and
tuple parts hold no bytes of their own; they are made again from the newest node of what they belong to. The parts of
a tuple are taken right after it, as it keeps all of them alive.

With a tier, a copy's ticket is a value like any other, and what is fetched is a node of its own: the next one that
reads the value waits for it. A value whose bytes are on their way to the tier is waited for where the plan frees it.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput
from torch._guards import detect_fake_mode

from remint.compiled import random_numbers, tier_copies
from remint.compiled.joint_split import TURN, Training, is_tangent, state_of
from remint.compiled.tier_copies import TierCopies
from remint.graph import Compute, Fetch, Graph, Offload, Plan
from remint.graph.steps import Step


def lower(training: Training, plan: Plan, copies: TierCopies | None = None) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward and the backward graph of a plan, as AOTAutograd expects them of a partitioner.

    The forward returns what it returned before and then what it saves; the backward takes what was saved and then
    the tangents. `copies` are for plans with a tier.
    """
    ops = plan.graph.ops
    names = [ops[index].name for index in plan.sequence]
    again = {name for name, count in Counter(names).items() if count > 1}
    # fx drops values; only those that leave for a tier are waited for.
    steps = [step for step in plan.steps if isinstance(step, Compute) or copies is not None]
    turn = next(at for at, step in enumerate(steps) if isinstance(step, Compute) and ops[step.op].name == TURN)
    leaving: set[str] = set()

    forward = _Writer(training, plan.graph, again, copies, leaving, _no_value)
    for node in training.placeholders:
        if not is_tangent(node):
            forward.placeholder(node)
    forward.run(steps[:turn])
    outputs = forward.results(training.forward_outputs)

    saved: dict[fx.Node, fx.Node] = {}  # what the forward saves, and the input of the backward that gets it

    def load(key: fx.Node | str) -> fx.Node:
        """Make the value of the forward that stands for `key` an input of the backward."""
        value = forward.there(key)
        # Those that ask for no version check would have to come last; with the check, the order is free.
        value.meta.pop("saved_tensor_with_no_vc_check", None)
        if value not in saved:
            with backward.graph.inserting_before(end_of_saved):
                saved[value] = backward.placeholder(key, like=value)
        return saved[value]

    backward = _Writer(training, plan.graph, again, copies, leaving, load, seen=forward.seen)
    end_of_saved = backward.graph.placeholder("tangents_end")
    for node in training.placeholders:
        if is_tangent(node):
            backward.placeholder(node)
    backward.run(steps[turn + 1 :])
    gradients = backward.results(training.backward_outputs)
    backward.graph.erase_node(end_of_saved)
    descriptions = training.descriptions
    described = [*descriptions[: len(outputs)], *map(SavedForBackwardsAOTOutput, range(len(saved)))]
    return (
        forward.finish((*outputs, *saved), described),
        backward.finish(gradients, descriptions[len(outputs) :]),
    )


def _ticket_of(value: str) -> str:
    return f"ticket of {value}"  # no node has such a name


def _no_value(key: fx.Node | str) -> fx.Node:
    raise AssertionError(f"{key} is read in the forward before it is made")


class _Writer:
    """One of the two graphs while it is written: `latest` has the newest node of each value, by its joint node.

    Tickets of copies are among them, by name. `leaving` are the values whose bytes are on their way to the tier.
    """

    def __init__(
        self,
        training: Training,
        planned: Graph,
        again: set[str],
        copies: TierCopies | None,
        leaving: set[str],
        load: Callable[[fx.Node | str], fx.Node],
        seen: set[str] | None = None,
    ) -> None:
        self.training = training
        self.planned = planned
        self.again = again
        self.copies = copies
        self.leaving = leaving
        self.load = load
        self.seen = seen or set()
        self.graph = fx.Graph()
        self.latest: dict[fx.Node | str, fx.Node] = {}
        self.joint = {node.name: node for node in training.joint.module.graph.nodes}
        self.made = training.storages.made
        self.arriving: dict[fx.Node | str, fx.Node] = {}  # fetched, and not waited for yet

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

    def run(self, steps: Sequence[Step]) -> None:
        """Place steps, in order."""
        for step in steps:
            if isinstance(step, Compute):
                self._run_op(self.planned.ops[step.op].name)
            elif isinstance(step, Offload):
                self._offload(step.value)
            elif isinstance(step, Fetch):
                self._fetch(step.value)
            else:
                self._free(step.value)

    def there(self, key: fx.Node | str) -> fx.Node:
        """Return the newest node of a value; an op that reads it waits until it has arrived."""
        if key in self.arriving:
            assert isinstance(key, fx.Node)
            arrived = self.graph.call_function(tier_copies.arrived, (self.arriving.pop(key),))
            arrived.meta = dict(key.meta)
            self.latest[key] = arrived
        return self.latest[key]

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

    def _run_op(self, name: str) -> None:
        if name in self.joint:
            self._op(self.joint[name])
        elif name.removesuffix(".state") in self.again:
            self._state(name)
        self.seen.add(name)

    def _offload(self, value: str) -> None:
        assert self.copies is not None
        node = self.training.bases[value]
        ticket = self.graph.call_function(self.copies.offload, (self._get(node),))
        ticket.meta["val"] = self._fake(torch.empty(1, dtype=torch.int64))
        self.latest[_ticket_of(value)] = ticket
        self.leaving.add(value)

    def _free(self, value: str) -> None:
        """Wait for transfers of the value: its bytes are not free before. fx frees them after the last use."""
        base = self.training.bases.get(value)
        if base is not None and base in self.arriving:
            self.there(base)
        if value in self.leaving:
            assert self.copies is not None
            self.leaving.discard(value)
            self.graph.call_function(self.copies.written, (self._get(_ticket_of(value)),))

    def _fetch(self, value: str) -> None:
        assert self.copies is not None
        node = self.training.bases[value]
        # Views and parts of it are taken from the new bytes.
        self._forget(node)
        self.arriving[node] = self.graph.call_function(self.copies.fetch, (self._get(_ticket_of(value)),))
        self.latest[node] = self.arriving[node]

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
        self.arriving.pop(node, None)
        self.latest[node] = placed
        self._parts(node)

    def _state(self, name: str) -> None:
        node = self.joint[name.removesuffix(".state")]
        device = random_numbers.device_of(node)
        placed = self.graph.call_function(random_numbers.take, (device,))
        placed.meta["val"] = self._fake(torch.empty(random_numbers.take(device).shape, dtype=torch.uint8))
        self.latest[name] = placed

    def _fake(self, like: torch.Tensor) -> torch.Tensor:
        mode = detect_fake_mode(self.training.joint.inputs)
        assert mode is not None
        with mode:
            return torch.empty(like.shape, dtype=like.dtype)

    def _forget(self, node: fx.Node) -> None:
        """Drop the views of an earlier run."""
        for user in node.users:
            if user.op == "call_function" and not self.made[user.name]:
                self.latest.pop(user, None)
                self._forget(user)

    def _parts(self, node: fx.Node) -> None:
        for user in node.users:
            if user.target is operator.getitem:
                self.arriving.pop(user, None)
                self.latest[user] = self.graph.node_copy(user, self._get)
                self._parts(user)

    def _get(self, node: fx.Node | str) -> fx.Node:
        """Return the newest node of a value, or make a view of it anew."""
        if node in self.latest:
            return self.there(node)
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
