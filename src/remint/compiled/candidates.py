"""A few plans of one graph, from little memory and much recomputation to all memory and none.

A graph of a step takes memory at three times: while its forward runs, while later graphs run (what it saves), and while
its backward runs. No single number describes that, so a graph has several candidate plans, and `division.py` picks one
for each run. The candidates do not depend on the budget: a larger budget has the same choice and more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from remint.compiled.joint_split import TURN, Around, saved_bytes_of
from remint.graph import Compute, Free, Graph, Plan
from remint.planners import quick_plan, smallest_plan

# How many limits are tried: of the peak, and for each of them of what is saved.
PEAKS = 4
SAVED = 4
# In the first step: how finely the space for later graphs is looked for, and which part of the budget their gradients
# may take.
BISECTIONS = 7
PART_FOR_GRADIENTS = 0.1


@dataclass(frozen=True)
class Candidate:
    """A plan of a graph: which ops run, in order, the bytes that it takes when, and its seconds.

    Bytes are those of the graph alone, without parameters and inputs: what the forward holds at most, what it leaves
    for the backward with what it returns, and what the backward holds at most.
    """

    sequence: tuple[int, ...]
    forward_bytes: int
    saved_bytes: int
    backward_bytes: int
    cost: float

    @classmethod
    def of(cls, graph: Graph, sequence: Iterable[int]) -> Candidate:
        """Measure a plan of `graph`, which is alone in its step."""
        plan = Plan.from_sequence(graph, tuple(sequence))
        turn = next(index for index, op in enumerate(graph.ops) if op.name == TURN)
        resident: set[str] = set()
        now = forward = backward = 0
        turned = False
        for step in plan.steps:
            if isinstance(step, Free):
                resident.discard(step.value)
                now -= graph.nbytes(step.value)
                continue
            assert isinstance(step, Compute), "compiled graphs are planned without a tier"
            turned = turned or step.op == turn
            fresh = [value for value in graph.ops[step.op].outputs if value not in resident]
            resident.update(fresh)
            now += sum(map(graph.nbytes, fresh))
            if turned:
                backward = max(backward, now)
            else:
                forward = max(forward, now)
        return cls(plan.sequence, forward, saved_bytes_of(plan), backward, plan.cost)

    def peak_beside(self, before: int, after: int) -> int:
        """Return the peak with `before` bytes of earlier graphs, and `after` bytes of gradients in the backward."""
        return before + max(self.forward_bytes, self.backward_bytes + after)


class Plannable(Protocol):
    """A graph that can be planned with something around it."""

    @property
    def tangent_bytes(self) -> int:
        """The bytes of what the backward begins with."""

    def graph_of(self, around: Around) -> Graph:
        """Return what is planned."""


def candidates_of(source: Plannable, after: int, seed: int) -> list[Candidate]:
    """Return plans of a graph, none of which is worse than another in every way.

    `after` are the most gradients of later graphs that any run of this graph finds: they make its backward tighter.
    """
    alone = source.graph_of(Around())
    keep_all = Candidate.of(alone, range(len(alone.ops)))
    found = [keep_all]

    def add(plan: Plan) -> Candidate:
        found.append(Candidate.of(alone, plan.sequence))
        return found[-1]

    smallest = add(smallest_plan(source.graph_of(Around(after=after)), seed))
    thrifty = add(thriftiest_plan(source, after, seed))
    low = smallest.peak_beside(0, after)
    high = max(keep_all.peak_beside(0, after), thrifty.peak_beside(0, after))
    for peak in _between(low, high, PEAKS):
        for saved in _between(thrifty.saved_bytes, keep_all.saved_bytes, SAVED):
            # At the turn there are what is saved, the tangents, the gradients, and this.
            later = max(0, peak - saved - after - source.tangent_bytes)
            graph = source.graph_of(Around(after=after, later=later))
            fitting = [c for c in found if c.peak_beside(0, after) <= peak and (c.saved_bytes <= saved or not later)]
            hint = min(fitting, key=lambda c: c.cost, default=smallest)
            add(quick_plan(graph, peak, Plan.from_sequence(graph, hint.sequence), seed))
    return best_of(found)


def thriftiest_plan(source: Plannable, after: int, seed: int) -> Plan:
    """Return a plan that saves as little as was found."""
    # Beside more than everything takes, the plan of the smallest peak is the one that saves least.
    later = 2 * source.graph_of(Around()).peak_bytes
    return smallest_plan(source.graph_of(Around(after=after, later=later)), seed)


def provisional_plan(source: Plannable, budget: int, *, before: int, leaves_space: bool, seed: int) -> Plan:
    """Return a plan for a step that is not known yet: inside `budget` if one was found, or else of a small peak.

    `before` is what earlier graphs hold. `leaves_space` asks for as much space as possible for later graphs.
    """
    smallest = smallest_plan(source.graph_of(Around(before=before)), seed)
    left = max(0, budget - before)
    hints = [smallest]
    if leaves_space:
        hints.append(thriftiest_plan(source, 0, seed))

    def plan_beside(later: int) -> Plan | None:
        graph = source.graph_of(Around(before=before, later=later, after=min(later, int(PART_FOR_GRADIENTS * left))))
        hint = min((Plan.from_sequence(graph, hint.sequence) for hint in hints), key=lambda p: p.peak_bytes)
        plan = quick_plan(graph, budget, hint, seed)
        return Plan.from_sequence(smallest.graph, plan.sequence) if plan.peak_bytes <= budget else None

    found = plan_beside(0)
    if found is None or not leaves_space:
        return found or smallest
    low, high = 0, left
    for _ in range(BISECTIONS):
        middle = (low + high) // 2
        plan = plan_beside(middle)
        if plan is None:
            high = middle
        else:
            low, found = middle, plan
    return found


def best_of(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that no other one beats in bytes and in cost, those that save least first."""
    ranked = sorted(
        set(candidates), key=lambda c: (c.saved_bytes, c.cost, c.backward_bytes, c.forward_bytes, c.sequence)
    )
    best: list[Candidate] = []
    for candidate in ranked:
        if not any(_at_least_as_good(other, candidate) for other in best):
            best.append(candidate)
    return best


def _at_least_as_good(one: Candidate, other: Candidate) -> bool:
    return (
        one.saved_bytes <= other.saved_bytes
        and one.forward_bytes <= other.forward_bytes
        and one.backward_bytes <= other.backward_bytes
        and one.cost <= other.cost
    )


def _between(low: int, high: int, count: int) -> list[int]:
    """Return `count` numbers from `low` to `high`, evenly spaced."""
    return sorted({low + (high - low) * place // (count - 1) for place in range(count)})
