"""PyTorch's operator database on the test device, with everything evicted after every op."""

from collections import Counter

import pytest

import remint
from remint.runtime.operator_samples import all_same, copied, outcome, samples_of, to_host
from tests.testing.test_accelerator_operators import NOT_SUPPORTED, OPS

pytestmark = pytest.mark.accelerator

PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_operator_database(part, request, record_property):
    from remint.testing import accelerator

    device = accelerator.load(devices=2, delay_us=0)
    everything = request.config.getoption("everything")
    different, operators, samples, evicting = [], 0, 0, 0
    left_out: Counter[str] = Counter()
    for op in OPS[part::PARTS]:
        if op.name in NOT_SUPPORTED:
            left_out[f"{op.name}: {NOT_SUPPORTED[op.name]}"] += 1
            continue
        before = samples
        for tree in samples_of(op, None if everything else 2):
            try:
                expected = to_host(outcome(op, *copied(tree, device)))
            except Exception as error:  # not a sample that works at all
                left_out[f"{op.name} fails without a budget: {type(error).__name__}"] += 1
                continue
            inputs = copied(tree, device)
            with remint.budget("32MiB", device=device, chaos=True) as run:
                found = to_host(outcome(op, *inputs))
            samples += 1
            evicting += run.num_evictions > 0
            if not all_same(expected, found):
                different.append(f"{op.name} {op.variant_test_name}")
        operators += samples > before
    line = f"operators on the test device, part {part}: {operators} operators, {samples} samples, {evicting} evicted"
    reasons = "; ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
    record_property("count", f"{line}; left out: {reasons or 'none'}; wrong: {len(different)}")
    assert not different
    # A database that hardly runs proves nothing.
    assert operators >= 155
    assert samples >= 300
    assert evicting >= 0.65 * samples
