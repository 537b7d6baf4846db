"""PyTorch's own operator database, with everything evicted after every op."""

import itertools

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import remint

pytest.importorskip("expecttest")
op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

UNINITIALIZED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
# The one with missing columns returns residuals that LAPACK leaves undefined.
UNDEFINED = {"linalg.lstsq"}
OPS = [op for op in op_db if op.name not in UNINITIALIZED | UNDEFINED and torch.float32 in op.supported_dtypes("cpu")]

PARTS = 8
SAMPLES = 2  # of each operator, unless everything is asked for
FLOORS = {"operators": 640, "samples": 1240, "all samples": 9920}


def copied(tree):
    def one(leaf):
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return tree_map(one, tree)


def outcome(op, inputs, args, kwargs):
    torch.manual_seed(0)
    outputs = tree_leaves(op(inputs, *args, **kwargs))
    made = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad and t.layout == torch.strided]
    leaves = [t for t in tree_leaves((inputs, args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    if made and leaves:
        outputs += torch.autograd.grad(made, leaves, [torch.ones_like(t) for t in made], allow_unused=True)
    return outputs


def same(a, b):
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b)
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if torch.equal(a, b):
        return True
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("part", range(PARTS))
def test_operator_database(part, request, record_property):
    everything = request.config.getoption("everything")
    different, operators, samples, evicting, refused = [], 0, 0, 0, 0
    for op in OPS[part::PARTS]:
        before = samples
        given = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
        for sample in itertools.islice(given, None if everything else SAMPLES):
            try:
                expected = outcome(op, *copied((sample.input, sample.args, sample.kwargs)))
            except Exception:  # not a sample that works at all
                refused += 1
                continue
            inputs = copied((sample.input, sample.args, sample.kwargs))
            with remint.budget("64MiB", chaos=True) as run:
                found = outcome(op, *inputs)
            samples += 1
            evicting += run.num_evictions > 0
            if len(expected) != len(found) or not all(map(same, expected, found)):
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
