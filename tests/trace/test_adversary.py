"""Theorem 3.2: whatever a deterministic policy does, the adversary makes it do it again."""

from __future__ import annotations

import math

import pytest

import remint
from remint import generators

# The theorem is about policies that do not know the future.
DETERMINISTIC = [name for name in remint.policy_names("ideal") if name not in ("random", "clairvoyant")]


@pytest.mark.core
@pytest.mark.parametrize("policy", DETERMINISTIC)
@pytest.mark.parametrize("width", [4, 8])
def test_every_deterministic_policy_needs_a_factor_of_n_over_b(policy: str, width: int) -> None:
    factors = []
    for n in (100, 200, 400):
        trace = generators.adversary(n, policy=policy, width=width)
        run = remint.simulate(trace, budget=width, policy=policy, max_slowdown=math.inf)
        assert run.status == "ok"
        assert run.num_ops == n
        factors.append((run.num_ops + run.num_rematerializations) / n)
        # n ops on width + 1 paths, each made again from the root: about n / (2 * (width + 1)) times the ops.
        assert factors[-1] >= n / (4 * width)
    # Omega(n / B): twice the ops, twice the factor.
    assert factors[1] >= 1.6 * factors[0]
    assert factors[2] >= 1.6 * factors[1]


def test_the_offline_order_needs_no_more_than_its_ops() -> None:
    """The same graph, one path after the other, is no trouble: the adversary is in the order."""
    n, width = 200, 4
    trace = generators.adversary(n, policy="lru", width=width)
    children: dict[int, list[int]] = {}
    for tensor in range(1, n):
        parent = int(trace.args[trace.arg_offsets[tensor]])
        children.setdefault(parent, []).append(tensor)
    builder = remint.TraceBuilder()
    (root,) = builder.call("extend", [], [1], 1.0)
    for start in children[0]:
        node, tensor = start, root
        while True:
            (after,) = builder.call("extend", [tensor], [1], 1.0)
            if tensor != root:
                builder.release(tensor)
            tensor = after
            if node not in children:
                break
            (node,) = children[node]
        builder.release(tensor)
    builder.release(root)
    run = remint.simulate(builder.build(), budget=width, policy="lru")
    assert (run.status, run.num_ops, run.num_rematerializations) == ("ok", n, 0)


@pytest.mark.parametrize(("n", "width"), [(3, 8), (100, 1)])
def test_impossible_sizes_are_refused(n: int, width: int) -> None:
    with pytest.raises(ValueError, match=r"at least|or more"):
        generators.adversary(n, width=width)
