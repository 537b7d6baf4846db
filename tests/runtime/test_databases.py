"""PyTorch's own databases of operators, modules, optimizers and user ops, with everything evicted after every op.

The numbers must be the same bits as without a budget. Each database runs with its tensors made outside of the budget
(constants) and inside (evicted before they are read, which finds ops that read memory around the dispatcher). The
counts are printed at the end of the run, and a test fails if it covers less than before.
"""

import itertools
import warnings
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import remint
from remint.runtime.operator_samples import all_same, copied, is_dense, operators, outcome, samples_of

pytest.importorskip("expecttest")
modules = pytest.importorskip("torch.testing._internal.common_modules")
optimizers = pytest.importorskip("torch.testing._internal.common_optimizers")
user_ops = pytest.importorskip("torch.testing._internal.custom_op_db")

PARTS = 8
WHERE = ["outside", "inside"]
# They compile CUDA code.
GPU_ONLY = {
    "jiterator_unary", "jiterator_binary", "jiterator_4inputs_with_extra_args", "jiterator_binary_return_by_ref",
    "jiterator_2inputs_2outputs",
}  # fmt: skip
OPS = [op for op in operators(dtype=None) if op.name not in GPU_ONLY]
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64, torch.bfloat16)


@dataclass
class Count:
    """What was run, and of how much of it something was evicted and recomputed."""

    kind: str
    entries: set[str] = field(default_factory=set)
    samples: int = 0
    evicted: int = 0
    skipped: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def check(self, record_property, *, entries, evicted=0.5):
        """Print the counts; fail on different bits, on fewer entries, and if most samples never lost a tensor."""
        share = self.evicted / max(1, self.samples)
        line = f"{self.kind}: {len(self.entries)} entries, {self.samples} samples, {self.evicted} with recomputation"
        reasons = "; ".join(f"{count} {reason}" for reason, count in self.skipped.most_common())
        record_property("count", f"{line}; skipped: {reasons or 'none'}; wrong: {len(self.wrong)}")
        assert not self.wrong, "\n".join(self.wrong)
        assert len(self.entries) >= entries, line
        assert share >= evicted, line


def leaves_of(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def computed(tree):
    """Compute copies of the dense tensors: they have a recipe, and are no leaves, which would be pinned as weights."""

    return tree_map(lambda leaf: leaf.clone() if is_dense(leaf) else leaf, tree)


def compare(count, name, program, inputs, where):
    """Run `program(inputs)` without and with chaos, and compare all that comes out."""

    def plain():
        return program(computed(copied(inputs)) if where == "inside" else copied(inputs))

    try:
        expected = plain()
    except Exception as error:
        count.skipped[f"{name.split()[0]} fails without a budget: {str(error).splitlines()[0][:40]}"] += 1
        return
    sources = copied(inputs)
    count.samples += 1
    count.entries.add(name)
    try:
        with remint.budget("256MiB", chaos=True) as run:
            if where == "inside":
                sources = computed(sources)
            found = program(sources)
    except Exception as error:
        count.wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        return
    count.evicted += run.num_rematerializations > 0
    if all_same(expected, found):
        return
    if all_same(expected, plain()):
        count.wrong.append(f"{name}: different bits")
    else:
        count.skipped[f"{name.split()[0]} gives other numbers each time"] += 1


def run_operators(count, ops, dtypes, most, where):
    for op, dtype in itertools.product(ops, dtypes):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        name = f"{op.name} {op.variant_test_name}"
        for tree in samples_of(op, most, dtype):
            compare(count, name, lambda inputs: outcome(op, *inputs), tree, where)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("where", WHERE)
def test_operators(where, part, request, record_property):
    everything = request.config.getoption("everything")
    count = Count(f"operators, part {part}, tensors {where}")
    floats = [op for op in OPS if torch.float32 in op.supported_dtypes("cpu")]
    others = [op for op in OPS if torch.float32 not in op.supported_dtypes("cpu")]
    run_operators(count, floats[part::PARTS], [torch.float32], None if everything else 2, where)
    # Ops of whole numbers (bits, gcd, shifts) are in the database with these types only.
    run_operators(count, others[part::PARTS], [torch.int64], None if everything else 2, where)
    if everything:
        run_operators(count, floats[part::PARTS], DTYPES[1:], 8, where)
    known = {f"{op.name} {op.variant_test_name}" for op in (*floats[part::PARTS], *others[part::PARTS])}
    assert known, "the database is empty"
    # A share of the samples has nothing to evict: numbers, empty tensors, views only.
    count.check(record_property, entries=len(known) - 2, evicted=0.75 if where == "inside" else 0.4)


@pytest.mark.parametrize("where", WHERE)
def test_user_operators(where, request, record_property):
    count = Count(f"user operators, tensors {where}")
    dtypes = DTYPES if request.config.getoption("everything") else DTYPES[:1]
    run_operators(count, user_ops.custom_op_db, dtypes, None, where)
    count.check(record_property, entries=len(user_ops.custom_op_db), evicted=0.75 if where == "inside" else 0.0)


def module_program(info, sample, training, where):
    """Construct, run forward and backward; return outputs, gradients, weights and statistics."""

    def construct():
        torch.manual_seed(0)
        arguments = sample.constructor_input
        return info.module_cls(*copied(arguments.args), **copied(arguments.kwargs)).float().train(training)

    made = [] if where == "inside" else [construct() for _ in range(3)]

    def program(inputs):
        module = construct() if where == "inside" else made.pop()
        torch.manual_seed(1)
        args, kwargs = inputs
        outputs = leaves_of(module(*args, **kwargs))
        differentiable = [t for t in outputs if t.requires_grad]
        leaves = [t for t in (*leaves_of(inputs), *module.parameters()) if t.requires_grad]
        if differentiable and leaves:
            grads = [torch.ones_like(t) for t in differentiable]
            outputs += torch.autograd.grad(differentiable, leaves, grads, allow_unused=True)
        return [*outputs, *module.parameters(), *module.buffers()]

    return program


@pytest.mark.parametrize("where", WHERE)
def test_modules(where, request, record_property):
    most = None if request.config.getoption("everything") else 2
    count, known = Count(f"modules, tensors {where}"), set()
    for info, training in itertools.product(modules.module_db, (True, False)):
        name = info.module_cls.__qualname__
        known.add(name)
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
        for sample in itertools.islice(samples, most):
            if sample.forward_input is None:
                count.skipped["without an input"] += 1
                continue
            inputs = (sample.forward_input.args, sample.forward_input.kwargs)
            compare(count, name, module_program(info, sample, training, where), inputs, where)
    count.check(record_property, entries=len(known) - 2, evicted=0.9)


def optimizer_program(info, options, sparse):
    """A few steps; return weights and state."""

    def program(sources):
        torch.manual_seed(0)
        weights = [source.detach().clone().requires_grad_() for source in sources]
        optimizer = info.optim_cls(weights, **options)

        def loss_of():
            optimizer.zero_grad()
            if sparse:
                where = torch.tensor([0, 3, 3, 5])
                total = sum(torch.nn.functional.embedding(where, w, sparse=True).square().sum() for w in weights)
            else:
                total = sum((weight.sin() * (k + 1)).square().mean() for k, weight in enumerate(weights))
            total.backward()
            return total

        losses = []
        for _ in range(2 if info.step_requires_closure else 4):
            if info.step_requires_closure:
                losses.append(optimizer.step(loss_of).detach())
            else:
                losses.append(loss_of().detach())
                optimizer.step()
        state = [value for slots in optimizer.state.values() for value in leaves_of(slots)]
        return [*losses, *weights, *state]

    return program


@pytest.mark.parametrize("where", WHERE)
def test_optimizers(where, record_property):
    count, known = Count(f"optimizers, tensors {where}"), set()
    for info in optimizers.optim_db:
        name = info.optim_cls.__name__
        known.add(name)
        sparse = info.only_supports_sparse_grads
        # Muon takes matrices only.
        shapes = [(8, 8), (16, 4), (12, 12)] if name == "Muon" or sparse else [(8, 8), (40,), (4, 3, 5)]
        torch.manual_seed(2)
        sources = [torch.randn(shape) for shape in shapes]
        for sample in info.optim_inputs_func(device="cpu"):
            for implementation in ("for loop", *info.supported_impls):
                if implementation == "differentiable":
                    count.skipped["differentiable: its weights are no leaves"] += 1
                    continue
                options = {key: copied(value) for key, value in sample.kwargs.items()}
                if implementation in ("foreach", "fused"):
                    options[implementation] = True
                elif "foreach" in info.supported_impls:
                    options["foreach"] = False
                if info.step_requires_closure:
                    # With everything evicted, each of its inner steps recomputes all steps before it.
                    options["max_iter"] = 3
                if options.get("capturable"):
                    count.skipped["capturable: for CUDA graphs"] += 1
                    continue
                label = f"{name} {sample.desc} {implementation}"
                compare(count, label, optimizer_program(info, options, sparse), sources, where)
    ran = {entry.split()[0] for entry in count.entries}
    assert ran == known
    count.check(record_property, entries=150, evicted=0.9)
