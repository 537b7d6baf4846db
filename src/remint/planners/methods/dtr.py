"""`dtr`: what the online engine would do, as a plan: greedy against optimal on equal terms.

Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021. The graph is played to the engine as a trace, on
ideal memory; the ops it runs, in order, are the plan. There is no second implementation of DTR here. The
engine knows nothing of ops that must not run twice: if it runs one again there is no plan. Its schedules may
leave the class of the other planners.
"""

from __future__ import annotations

from remint.graph import Plan
from remint.graph.trace_conversion import trace_from_graph
from remint.planners.contract import Infeasible, Outcome, Task

POLICIES = ("dtr-eq", "dtr", "dtr-local")
SLOWDOWN = 20.0


def dtr(task: Task) -> Outcome:
    """Play the graph to the engine under DTR's policies, and return the cheapest schedule that fits."""
    from remint.simulator import simulate

    trace, maker = trace_from_graph(task.graph)
    found: list[Plan] = []
    reason = "the time was up"
    for policy in POLICIES:
        run = simulate(trace, budget=task.budget, policy=policy, events=True, timeline=False, max_slowdown=SLOWDOWN)
        if run.status != "ok" or run.events is None:
            reason = run.failure or run.status
            continue
        sequence = _sequence(run.events, maker)
        if any(sequence.count(i) > 1 for i, op in enumerate(task.graph.ops) if not op.rematerializable):
            reason = "it runs an op again that must not run twice"
            continue
        found.append(Plan.from_sequence(task.graph, sequence))
        if task.left() == 0:
            break
    fitting = [plan for plan in found if plan.peak_bytes <= task.budget]
    if not fitting:
        raise Infeasible(f"the online engine has no schedule inside the budget ({reason})")
    return Outcome(min(fitting, key=lambda plan: plan.cost).sequence)


def _sequence(events: tuple[str, ...], maker: dict[int, int]) -> list[int]:
    """Return the ops in the order in which the engine ran them: one C or R event per run of an op."""
    sequence = []
    for event in events:
        if event[0] in "CR" and int(event[1:]) in maker:
            sequence.append(maker[int(event[1:])])
    return sequence
