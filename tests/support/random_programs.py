"""Random programs that rematerialize deeply: what they read again lies far behind them.

`traces()` (trace_strategies) explores what a trace may look like; these programs explore what an engine may
have to do. They are drawn from a seed, so that one is a hundred times quicker to make, and named by it.
"""

from __future__ import annotations

import random

from remint.trace import Trace, TraceBuilder


def random_program(
    seed: int,
    num_ops: int,
    *,
    constants: int = 2,
    views: float = 0.1,
    mutations: float = 0.1,
    several_outputs: float = 0.2,
    wide_views: bool = False,
) -> Trace:
    """Return a program of `num_ops` ops that mostly read the latest tensors, and at times a very old one.

    Sizes and costs come from a few values, zero among them, so that scores are often equal. `wide_views` are
    views that read other tensors beside the one whose storage they share.
    """
    rng = random.Random(seed)
    builder = TraceBuilder()
    live = [builder.constant(rng.choice([0, 1, 3]), "weight") for _ in range(constants)]
    sizes = rng.choice([[1], [1, 2, 3], [0, 1, 5, 8], [4, 4, 4, 64]])
    costs = rng.choice([[1], [0, 1, 2], [1, 10, 1000], list(range(1, 100))])

    def seconds() -> float:
        return rng.choice(costs) / 1e9

    def pick() -> int:
        return rng.choice(live) if rng.random() < 0.35 else rng.choice(live[-3:])

    forgetful = rng.random() * 0.8
    for _ in range(num_ops):
        args = [pick() for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3]))] if live else []
        kind = rng.random()
        if args and kind < views:
            read = args if wide_views else args[:1]
            outputs = rng.choice([1, 1, 2])
            live += builder.call("view", read, [0] * outputs, seconds(), aliases=[0] * outputs)
        elif args and kind < views + mutations:
            mutated = rng.sample(range(len(args)), rng.choice([1, 1, min(2, len(args))]))
            live += builder.mutate("add_", args, mutated, seconds())
        else:
            several = rng.random() < several_outputs
            nbytes = [rng.choice(sizes) for _ in range(rng.choice([0, 2, 3]) if several else 1)]
            aliases = [-1] * len(nbytes)
            if views and several and args and nbytes and rng.random() < 0.3:
                args = args if wide_views else args[:1]
                nbytes.append(0)
                aliases.append(rng.randrange(len(args)))
            live += builder.call("op", args, nbytes, seconds(), aliases=aliases)
        while len(live) > 2 and rng.random() < forgetful:
            builder.release(live.pop(rng.randrange(len(live))))
    held = [tensor for tensor in live if rng.random() < 0.5]
    return builder.build(rng.sample(held, len(held)))
