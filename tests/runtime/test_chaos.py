"""PyTorch's own operator database, with everything evicted after every op."""

import pytest

import remint
from remint.runtime.operator_samples import all_same, copied, operators, outcome, samples_of

pytest.importorskip("expecttest")
OPS = operators()

PARTS = 8
SAMPLES = 2  # of each operator, unless everything is asked for
FLOORS = {"operators": 640, "samples": 1240, "all samples": 9920}


@pytest.mark.parametrize("part", range(PARTS))
def test_operator_database(part, request, record_property):
    everything = request.config.getoption("everything")
    different, operators, samples, evicting, refused = [], 0, 0, 0, 0
    for op in OPS[part::PARTS]:
        before = samples
        for tree in samples_of(op, None if everything else SAMPLES):
            try:
                expected = outcome(op, *copied(tree))
            except Exception:  # not a sample that works at all
                refused += 1
                continue
            inputs = copied(tree)
            with remint.budget("64MiB", chaos=True) as run:
                found = outcome(op, *inputs)
            samples += 1
            evicting += run.num_evictions > 0
            if not all_same(expected, found):
                different.append(f"{op.name} {op.variant_test_name}")
        operators += samples > before
    record_property("operators", operators)
    record_property("samples", samples)
    record_property("samples that evicted", evicting)
    record_property("samples that do not work without a budget", refused)
    assert not different
    # A database that hardly runs proves nothing.
    assert operators >= FLOORS["operators"] // PARTS
    assert samples >= FLOORS["all samples" if everything else "samples"] // PARTS
    assert evicting >= 0.7 * samples
    assert refused <= 0.02 * samples
