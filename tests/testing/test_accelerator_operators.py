"""PyTorch's operator database on the test device: the bits of the CPU."""

import pytest

from remint.runtime.operator_samples import all_same, copied, operators, outcome, samples_of, to_host

pytestmark = pytest.mark.accelerator

pytest.importorskip("expecttest")
OPS = operators()
PARTS = 4
SAMPLES = 2  # of each operator

# Random numbers are not those of the CPU: these need only be the same twice.
RANDOM = {
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu",
    "normal",
    "pca_lowrank",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "svd_lowrank",
    "uniform",
}
# Attention is computed in another way than on the CPU, where one fused kernel does it.
OTHER_KERNEL = {"nn.functional.multi_head_attention_forward"}
_SPARSE = "tensors of the device are dense"
NOT_SUPPORTED = {
    "sparse.sampled_addmm": _SPARSE,
    "sparse.mm": _SPARSE,
    "to_sparse": _SPARSE,
    "tensor_split": "wants its indices on the CPU on every device",
}


@pytest.mark.parametrize("part", range(PARTS))
def test_operators_give_the_bits_of_the_cpu(part, device, record_property):
    different, samples = [], 0
    for op in OPS[part::PARTS]:
        for tree in samples_of(op, SAMPLES):
            try:
                expected = to_host(outcome(op, *copied(tree)))
            except Exception:  # not a sample that works at all
                continue
            if op.name in NOT_SUPPORTED:
                continue
            # Twice: the host waits for the first call, and not for the second.
            found = [to_host(outcome(op, *copied(tree, device))) for _ in range(2)]
            samples += 1
            if not all_same(*found) or (op.name not in RANDOM | OTHER_KERNEL and not all_same(expected, found[1])):
                different.append(f"{op.name} {op.variant_test_name}")
    record_property("samples", samples)
    assert not different
    assert samples >= 1250 // PARTS * 0.95
