"""PyTorch's operator database on the test device, with everything evicted after every op."""

import itertools

import pytest
import torch

import remint
from tests.runtime.test_chaos import OPS, outcome
from tests.testing.test_accelerator_operators import NOT_SUPPORTED, all_same, on, to_host

pytestmark = pytest.mark.accelerator

PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_operator_database(part, request, record_property):
    from remint.testing import accelerator

    device = accelerator.load(devices=2, delay_us=0)
    everything = request.config.getoption("everything")
    different, operators, samples, evicting = [], 0, 0, 0
    for op in OPS[part::PARTS]:
        if op.name in NOT_SUPPORTED:
            continue
        before = samples
        given = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
        for sample in itertools.islice(given, None if everything else 2):
            tree = (sample.input, sample.args, sample.kwargs)
            try:
                expected = to_host(outcome(op, *on(device, tree)))
            except Exception:  # not a sample that works at all
                continue
            inputs = on(device, tree)
            with remint.budget("32MiB", device=device, chaos=True) as run:
                found = to_host(outcome(op, *inputs))
            samples += 1
            evicting += run.num_evictions > 0
            if not all_same(expected, found):
                different.append(f"{op.name} {op.variant_test_name}")
        operators += samples > before
    record_property("operators", operators)
    record_property("samples", samples)
    record_property("samples that evicted", evicting)
    assert not different
    # A database that hardly runs proves nothing.
    assert operators >= 155
    assert samples >= 300
    assert evicting >= 0.65 * samples
