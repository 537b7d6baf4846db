"""How near the optimum plans of small graphs are: python benchmarks/planning_small.py [--full] [--graph NAME ...]

U-shaped, random, chain-like, residual and tree-like steps of 20 to 200 ops, at a part of their peak and at the
smallest budget with a known plan. Quick by default: mostly up to 60 ops; --full has all. Each row is printed when it
is there. Ctrl-C ends with a table of the rows so far; --graph goes on with the graphs that are left.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator

from remint import BudgetError, Graph, Op, generators, plan, verify
from remint.planners.cpu_clock import cpu_seconds
from report import markdown, publish

BUDGETS = (0.3, 0.35, 0.4, 0.5)
NOTES = """Overhead over running every op once, and the proven bound on it, of `auto`; gap: how far the cost can be from
the optimum. CPU: seconds of CPU time, solvers included, of {limit:g} allowed; it ends at a gap of 0.1%.
Budgets are parts of the peak without rematerialization; *least* is the smallest budget with a known plan, and
rows below it are left out."""

Forward = tuple[float, list[int], int]  # cost, the ops whose outputs it reads, bytes


def joint(forward: list[Forward]) -> Graph:
    """A forward pass and its backward pass: each op's gradient reads the op's inputs and its readers' gradients."""
    readers = [[j for j, (_, reads, _) in enumerate(forward) if i in reads] for i in range(len(forward))]
    ops = [
        Op(f"f{i}", cost, tuple(f"x{p}" for p in reads) or ("batch",), {f"x{i}": nbytes})
        for i, (cost, reads, nbytes) in enumerate(forward)
    ]
    for i, (cost, reads, _) in reversed(list(enumerate(forward))):
        gradients = [f"g{i}.{j}" for j in readers[i]] or [f"x{i}"]
        saved = [f"x{p}" for p in reads] or ["batch"]
        made = {f"g{p}.{i}": forward[p][2] for p in reads} | {f"w{i}": 1}
        ops.append(Op(f"b{i}", 2 * cost, (*gradients, *saved), made))
    return Graph(tuple(ops), {"batch": forward[0][2]}, tuple(f"w{i}" for i in range(len(forward))))


def u_shaped(levels: int, per_level: int, largest: int = 64) -> Graph:
    """Down and up again, half the size at each level, with a skip from each level."""
    forward: list[Forward] = []

    def add(cost: float, reads: list[int], nbytes: int) -> int:
        forward.append((cost, reads, nbytes))
        return len(forward) - 1

    x, skips = -1, []
    for level in range(levels):
        for _ in range(per_level):
            x = add(4, [x] if x >= 0 else [], largest >> level)
        skips.append(x)
        x = add(1, [x], largest >> (level + 1))
    for _ in range(per_level):
        x = add(4, [x], largest >> levels)
    for level in reversed(range(levels)):
        x = add(2, [x], largest >> level)
        for k in range(per_level):
            x = add(4, [x, skips[level]] if k == 0 else [x], largest >> level)
    add(1, [x], 1)
    return joint(forward)


def random_step(ops: int, seed: int) -> Graph:
    """Each op reads one to three of the last five; costs and sizes are spread over more than an order of magnitude."""
    r = random.Random(seed)
    forward: list[Forward] = []
    for i in range(ops // 2 - 1):
        reads = sorted(r.sample(range(max(0, i - 5), i), min(i, r.choice((1, 1, 2, 2, 3))))) if i else []
        forward.append((round(10 ** r.uniform(-1, 1), 3), reads, r.choice((1, 2, 3, 5, 8, 13, 21, 34))))
    read = {p for _, reads, _ in forward for p in reads}
    forward.append((0.5, [i for i in range(len(forward)) if i not in read], 1))
    return joint(forward)


SMALL: dict[str, Callable[[], Graph]] = {
    "U-shaped": lambda: u_shaped(3, 2),
    "U-shaped, 1 level": lambda: Graph.from_trace(generators.unet(1)),
    "random": lambda: random_step(52, 3),
    "chain": lambda: Graph.from_trace(generators.chain(30)),
    "residual": lambda: Graph.from_trace(generators.residual(3)),
    "tree": lambda: Graph.from_trace(generators.tree(2)),
    "recurrent": lambda: Graph.from_trace(generators.rnn(5)),
    "U-shaped, 2 levels": lambda: u_shaped(2, 2),
    "random, 40": lambda: random_step(40, 1),
    "random, 60": lambda: random_step(60, 5),
    "U-shaped, 3 levels": lambda: Graph.from_trace(generators.unet(3)),
    "residual, 10 blocks": lambda: Graph.from_trace(generators.residual(10)),
}
MORE: dict[str, Callable[[], Graph]] = {
    "random, 100": lambda: random_step(100, 7),
    "random, 200": lambda: random_step(200, 9),
    "chain, 100": lambda: Graph.from_trace(generators.chain(100)),
    "tree, 8 leaves": lambda: Graph.from_trace(generators.tree(3)),
    "recurrent, 20 steps": lambda: Graph.from_trace(generators.rnn(20)),
}


def least_known(graph: Graph) -> int:
    """The smallest budget with a known plan."""
    try:
        plan(graph, graph.min_budget_bytes, time_limit=2)
    except BudgetError as error:
        return error.known_budget_bytes or graph.peak_bytes
    return graph.min_budget_bytes


def rows_of(name: str, graph: Graph, limit: float) -> Iterator[list[str]]:
    least = least_known(graph)
    for part in (None, *BUDGETS):
        budget = least if part is None else int(part * graph.peak_bytes)
        if part is not None and budget < least:
            continue
        label = f"least ({least / graph.peak_bytes:.1%})" if part is None else f"{part:.0%}"
        began = cpu_seconds()
        made = plan(graph, budget, time_limit=limit)
        seconds = cpu_seconds() - began
        verify(graph, made, budget)
        bound = made.bound / graph.cost - 1
        found = [f"{part:.2%}" for part in (made.overhead, bound, made.gap)]
        yield [name, str(len(graph.ops)), label, *found, f"{seconds:.1f} s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all graphs, up to 200 ops")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds of CPU time for each plan")
    parser.add_argument("--graph", action="append", choices=[*SMALL, *MORE], help="only this graph; may be repeated")
    options = parser.parse_args()
    chosen = SMALL | MORE if options.full else SMALL
    if options.graph:
        chosen = {name: make for name, make in (SMALL | MORE).items() if name in options.graph}
    rows: list[list[str]] = []
    try:
        for name, make in chosen.items():
            for row in rows_of(name, make(), options.time_limit):
                rows.append(row)
                print(*row, sep="  ", flush=True)
    except KeyboardInterrupt:
        print("Stopped: the table has the rows so far.", flush=True)
    headings = ["graph", "ops", "budget", "overhead", "bound", "gap", "CPU"]
    publish(
        "How near the optimum plans of small graphs are",
        markdown(headings, rows),
        notes=NOTES.format(limit=options.time_limit),
        packages=("highspy", "ortools"),
    )


if __name__ == "__main__":
    main()
