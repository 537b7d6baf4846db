"""PyTorch's operator database on the test device: the bits of the CPU."""

import itertools

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.runtime.test_chaos import OPS, outcome, same

pytestmark = pytest.mark.accelerator

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
# Tensors are dense; `tensor_split` wants its indices on the CPU on every device.
NOT_SUPPORTED = {"sparse.sampled_addmm", "sparse.mm", "to_sparse", "tensor_split"}


def on(device, tree):
    def one(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf if leaf.layout != torch.strided else _copy(leaf, device)
        return torch.device(device) if isinstance(leaf, torch.device) or leaf == "cpu" else leaf

    return tree_map(one, tree)


def _copy(tensor, device):
    return tensor.detach().clone().to(device).requires_grad_(tensor.requires_grad)


def to_host(outputs):
    return [output.cpu() if isinstance(output, torch.Tensor) else output for output in outputs]


def looks(output):
    return (output.dtype, output.shape) if isinstance(output, torch.Tensor) else None


def all_same(a, b):
    return [*map(looks, a)] == [*map(looks, b)] and all(map(same, a, b))


@pytest.mark.parametrize("part", range(PARTS))
def test_operators_give_the_bits_of_the_cpu(part, device, record_property):
    different, samples = [], 0
    for op in OPS[part::PARTS]:
        given = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
        for sample in itertools.islice(given, SAMPLES):
            tree = (sample.input, sample.args, sample.kwargs)
            try:
                expected = to_host(outcome(op, *on("cpu", tree)))
            except Exception:  # not a sample that works at all
                continue
            if op.name in NOT_SUPPORTED:
                continue
            # Twice: the host waits for the first call, and not for the second.
            found = [to_host(outcome(op, *on(device, tree))) for _ in range(2)]
            samples += 1
            if not all_same(*found) or (op.name not in RANDOM | OTHER_KERNEL and not all_same(expected, found[1])):
                different.append(f"{op.name} {op.variant_test_name}")
    record_property("samples", samples)
    assert not different
    assert samples >= 1250 // PARTS * 0.95
