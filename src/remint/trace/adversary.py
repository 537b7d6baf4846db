"""DTR's adversary (theorem 3.2): a graph that is built against a policy while the policy runs."""

from __future__ import annotations

from remint import _core
from remint.trace.builder import TraceBuilder
from remint.trace.trace import Trace


def adversary(n: int, *, policy: str = "dtr-eq", width: int = 8, seed: int = 0) -> Trace:
    """Return a trace of `n` unit ops on which `policy`, with a budget of `width` bytes, does far more than `n` ops.

    From one root grow `width + 1` paths of unit tensors, all held by the program. A budget of `width` cannot hold a
    tensor of every path, so there is always one with nothing resident: that one is extended next, and has to be made
    again from the root. An offline schedule would finish one path after the other, in about `n` ops; any
    deterministic policy needs a factor of Omega(n / width) more.

    >>> from remint import simulate
    >>> trace = adversary(200, policy="lru", width=4)
    >>> run = simulate(trace, budget=4, policy="lru", max_slowdown=float("inf"))
    >>> run.status, run.slowdown > 200 / 4 / 4
    ('ok', True)
    """
    if width < 2:
        raise ValueError(f"width is 2 or more, the budget of an op with one input, not {width}")
    if n < width + 2:
        raise ValueError(f"n is at least {width + 2}, a root and {width + 1} paths, not {n}")
    options = _core.SimulationOptions()
    options.budget = width
    options.policy = policy
    options.seed = seed
    simulation = _core.Simulation(options)
    builder = TraceBuilder()

    def extend(args: list[int]) -> int:
        (tensor,) = builder.call("extend", args, [1], seconds=1.0)
        status = simulation.advance(builder.build(), finish=False)
        if status != "ok":
            raise RuntimeError(f"the policy gave up with {status} while the adversary was at work")
        return tensor

    root = extend([])
    paths = [[extend([root])] for _ in range(width + 1)]
    for _ in range(n - width - 2):
        path = next(path for path in paths if not any(map(simulation.is_resident, path)))
        path.append(extend([path[-1]]))
    for tensor in range(builder.num_tensors):
        builder.release(tensor)
    return builder.build()
