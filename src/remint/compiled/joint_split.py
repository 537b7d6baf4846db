"""The joint graph of AOTAutograd as a Graph to plan: forward, the turn, backward.

At the turn the forward has returned and the backward has not begun. It is an op of its own: it reads what the
forward returns, so that all of it is made before; it makes the tangents, so that what depends on them runs after;
and it must not run twice. First runs keep the order of the graph, so every plan has one turn, and what is resident
there is what the forward saves for the backward.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

from remint.capture.costs import Cost
from remint.capture.joint_graph import Joint
from remint.capture.storages import Storages, find_storages, outputs_of, repeatable
from remint.compiled import random_numbers
from remint.graph import Compute, Fetch, Free, Graph, Op, Plan

# Names that no fx node can have.
TURN = "end of the forward"
LATER_GRADIENTS = "gradients of later graphs"
LATER_GRAPHS = "what later graphs hold"
EARLIER = "what earlier graphs keep"
RETURNED = " as returned"


@dataclass(frozen=True, kw_only=True)
class Around:
    """What a step holds beside one of its graphs, in bytes."""

    before: int = 0  # what earlier graphs keep for their backward
    later: int = 0  # what later graphs need between this forward and this backward
    after: int = 0  # the gradients that later graphs have made when this backward begins


ALONE = Around()


@dataclass(frozen=True)
class Training:
    """A joint graph, split at the turn: ops in the order in which they first run, views and tuple parts left out."""

    joint: Joint
    storages: Storages
    forward: tuple[fx.Node, ...]
    backward: tuple[fx.Node, ...]
    forward_outputs: tuple[Any, ...]
    backward_outputs: tuple[Any, ...]
    replays_rng: bool = field(kw_only=True, default=True)

    @classmethod
    def split(
        cls, module: fx.GraphModule, inputs: Sequence[Any], num_forward_outputs: int, *, replays_rng: bool = True
    ) -> Training:
        """Find the turn of a joint graph, and which storages its nodes make."""
        placeholders = module.graph.find_nodes(op="placeholder")
        _fix_sizes(placeholders)
        joint = Joint(module, tuple(inputs), tuple(node.name for node in placeholders), _sources(module))
        storages = find_storages(joint)
        (output,) = module.graph.find_nodes(op="output")
        results = tuple(output.args[0])
        calls = [node for node in module.graph.nodes if node.op == "call_function"]

        late = {node for node in placeholders if is_tangent(node)}
        for node in calls:
            if not late.isdisjoint(node.all_input_nodes):
                late.add(node)
        wanted = _ancestors(node for node in results[:num_forward_outputs] if isinstance(node, fx.Node))
        place = {node: index for index, node in enumerate(calls)}
        last = max((place[node] for node in wanted if node in place), default=-1)
        # Writes to inputs stand at the end of the joint graph; those that need no tangent belong to the forward, as do
        # assertions.
        wanted |= _ancestors(node for node in calls if node not in late and _acts(node))
        early = {node for node in calls if node not in late and (node in wanted or place[node] <= last)}
        ops = [node for node in calls if storages.made[node.name] or _acts(node)]
        return cls(
            joint,
            storages,
            tuple(node for node in ops if node in early),
            tuple(node for node in ops if node not in early),
            results[:num_forward_outputs],
            results[num_forward_outputs:],
            replays_rng=replays_rng,
        )

    @cached_property
    def placeholders(self) -> list[fx.Node]:
        """The inputs of the joint graph."""
        return list(self.joint.module.graph.find_nodes(op="placeholder"))

    @property
    def descriptions(self) -> list[Any]:
        """What AOTAutograd says that each output of the joint graph is."""
        (output,) = self.joint.module.graph.find_nodes(op="output")
        return list(output.meta["desc"])

    def graph(
        self,
        costs: Mapping[str, Cost],
        *,
        around: Around = ALONE,
        include_parameters: bool = False,
    ) -> Graph:
        """Return what is planned. Parameters and inputs are the caller's and count only if asked for."""
        made = self._made
        constants = self.storages.constants
        returned = [s for s in self._storages(self.forward_outputs) if s in made]
        # What the forward returns is the caller's: it stays. An op that makes only that has no reason to run again.
        # Of an op that makes more (a batch norm and its statistics) the caller keeps the part as it was at the turn.
        whole = {s for maker in self.storages.made.values() if len(maker) == 1 for s in maker if s in returned}
        parts = {s + RETURNED: made[s] for s in returned if s not in whole}
        written = self._written()

        def ops(nodes: Sequence[fx.Node]) -> list[Op]:
            found: list[Op] = []
            for node in nodes:
                name = node.name
                # An op that writes to an input, or asserts, makes nothing, and still has its place.
                outputs = outputs_of(node, self.storages, costs[name]) or {name: 0}
                again = self._repeats(node, written) and whole.isdisjoint(outputs)
                inputs = self.storages.read[name]
                if again and random_numbers.draws(node):
                    inputs = (*inputs, state_of(name))
                    nbytes = random_numbers.take(random_numbers.device_of(node)).nbytes
                    found.append(Op(state_of(name), random_numbers.SECONDS, (), {state_of(name): nbytes}, False))
                found.append(Op(name, costs[name].seconds, inputs, outputs, again, self.joint.sources.get(name, "")))
            return found

        tangents = {s: constants[s] for s in self._storages(n for n in self.placeholders if is_tangent(n))}
        later = {LATER_GRADIENTS: around.after, LATER_GRAPHS: around.later}
        turn = Op(TURN, 0.0, tuple(returned), {**tangents, **parts, **later}, rematerializable=False)
        gradients = [s for s in self._storages(self.backward_outputs) if s in made]
        # Autograd holds on to the tangents while the backward runs.
        results = dict.fromkeys((*whole, *parts, *tangents, LATER_GRADIENTS, *gradients))
        counted = {s: b if include_parameters else 0 for s, b in constants.items() if s not in tangents}
        return Graph(
            (*ops(self.forward), turn, *ops(self.backward)), {**counted, EARLIER: around.before}, tuple(results)
        )

    @cached_property
    def bases(self) -> dict[str, fx.Node]:
        """The node that is first to hold each storage, of those that one tensor is in: those can be offloaded."""
        found: dict[str, fx.Node] = {}
        for op in (*self.forward, *self.backward):
            nodes = [op]
            for node in nodes:
                held = self.storages.holding[node.name]
                if isinstance(node.meta.get("val"), torch.Tensor) and len(held) == 1 and held[0] in self._made:
                    found.setdefault(held[0], node)
                else:
                    nodes += [user for user in node.users if user.target is operator.getitem]
        return found

    def stays(self, graph: Graph) -> set[str]:
        """Return the values of a planned graph that are never offloaded: no node, or the caller, too, has them."""
        returned = self._storages(self.forward_outputs)
        return {v for op in graph.ops for v in op.outputs if v not in self.bases or v in returned}

    def gradients_of(self, number: int) -> dict[str, int]:
        """Return the gradients of the input with this number that the backward makes: names and bytes."""
        if number >= len(self.backward_outputs):
            return {}
        return {s: self._made[s] for s in self._storages([self.backward_outputs[number]]) if s in self._made}

    def constants_by_input(self) -> list[Mapping[str, int]]:
        """Return the bytes of each input, tangents apart; then those that the graph itself holds."""
        constants = dict(self.storages.constants)
        found: list[Mapping[str, int]] = []
        for node in self.placeholders:
            mine = {s: constants.pop(s) for s in self._storages([node]) if s in constants}
            if not is_tangent(node):
                found.append(mine)
        return [*found, constants]

    @cached_property
    def tangent_bytes(self) -> int:
        """The bytes of what the backward begins with."""
        return sum(self.storages.constants[s] for s in self._storages(n for n in self.placeholders if is_tangent(n)))

    @cached_property
    def returned_bytes(self) -> int:
        """The bytes of what the forward returns and has made itself."""
        return sum(self._made[s] for s in self._storages(self.forward_outputs) if s in self._made)

    @cached_property
    def _made(self) -> dict[str, int]:
        return {s: b for storages in self.storages.made.values() for s, b in storages.items()}

    def _storages(self, nodes: Any) -> dict[str, None]:
        return dict.fromkeys(s for n in nodes if isinstance(n, fx.Node) for s in self.storages.holding[n.name])

    def _written(self) -> set[str]:
        """The inputs that the step writes to: by an op, or by the caller, to whom the new value is returned."""
        written = set(self._storages(n for n in (*self.forward, *self.backward) if not repeatable(n)))
        described = {node.meta.get("desc"): node for node in self.placeholders}
        for description in self.descriptions:
            if isinstance(description, InputMutationAOTOutput):
                written.update(self._storages([described[description.mutated_input]]))
        return written

    def _repeats(self, node: fx.Node, written: set[str]) -> bool:
        """Whether a node, run again at any later time, makes what it made before."""
        target = node.target
        if _acts(node) or not isinstance(target, torch._ops.OpOverload):
            return False
        if target.namespace in ("_c10d_functional", "c10d"):
            return False  # every rank would have to run it again at the same time
        if random_numbers.draws(node) and not self.replays_rng:
            return False
        # The running statistics that a batch norm reads matter only to those that it makes, which are written back
        # once; its backward takes them, but reads them only in evaluation.
        in_training = target is torch.ops.aten._native_batch_norm_legit_functional.default and bool(node.args[5])
        return in_training or written.isdisjoint(self.storages.read[node.name])


def saved_bytes_of(plan: Plan) -> int:
    """Return what a plan keeps from the forward for the backward, with what the caller holds of its results."""
    graph = plan.graph
    turn = next(index for index, op in enumerate(graph.ops) if op.name == TURN)
    resident: set[str] = set()
    turned = False
    for step in plan.steps:
        if isinstance(step, Free):
            resident.discard(step.value)
        elif turned:
            break
        elif isinstance(step, Fetch):
            resident.add(step.value)
        elif isinstance(step, Compute):
            turned = step.op == turn
            # Of what the turn makes, the tangents for one, only the parts that were returned were there before.
            made = graph.ops[step.op].outputs
            resident.update(value for value in made if not turned or value.endswith(RETURNED))
    return sum(graph.nbytes(value) for value in resident)


def is_tangent(node: fx.Node) -> bool:
    """Whether a placeholder of the joint graph is an input of the backward."""
    return str(node.target).startswith("tangents")


def state_of(name: str) -> str:
    """The name of the state of the random number generator before a node."""
    return f"{name}.state"


def _fix_sizes(placeholders: Sequence[fx.Node]) -> None:
    """Put numbers where the graph reads sizes: they were specialized, and are nothing to save for the backward."""
    for node in placeholders:
        if isinstance(node.meta.get("val"), int | torch.SymInt):
            fixed: dict[fx.Node, Any] = {node: int(node.meta["val"])}
            for user in list(node.users):
                user.args, user.kwargs = fx.node.map_arg((user.args, user.kwargs), _replacing(fixed))


def _acts(node: fx.Node) -> bool:
    """Whether a node is there for what it does, not for what it makes."""
    return not repeatable(node) or node.is_impure(impure_random=False)


def _replacing(fixed: dict[fx.Node, Any]) -> Any:
    return lambda node: fixed.get(node, node)


def _ancestors(nodes: Any) -> set[fx.Node]:
    found = set(nodes)
    queue = list(found)
    while queue:
        for source in queue.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                queue.append(source)
    return found


def _sources(module: fx.GraphModule) -> dict[str, str]:
    """Return the user's line per node, as far as dynamo noted it."""
    sources: dict[str, str] = {}
    for node in module.graph.nodes:
        lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
        if lines:
            sources[node.name] = f"{Path(lines[-1][0]).name}:{lines[-1][1]}"
    return sources
