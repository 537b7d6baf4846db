"""Every way to read a tensor works on an evicted one."""

import copy
import io
import pickle
import tempfile
import warnings
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import remint

READERS = {}


def reader(*inputs):
    """Add a program to READERS; it is given tensors made inside of a budget, and evicted."""

    def add(program):
        READERS[program.__name__] = (inputs, program)
        return program

    return add


def normal(*shape):
    return lambda: torch.randn(*shape)


def whole(*numbers):
    return lambda: torch.tensor(numbers)


def below(limit, *shape):
    return lambda: torch.randint(0, limit, shape)


@reader(normal(50, 16, 20), below(19, 16, 30), whole(*[50] * 16), whole(*range(10, 26)))
def ctc_loss(x, targets, input_lengths, target_lengths):
    leaf = x.detach().clone().requires_grad_()
    loss = functional.ctc_loss(leaf.log_softmax(2), targets + 1, input_lengths, target_lengths)
    loss.backward()
    return loss.detach(), leaf.grad


@reader(normal(50, 16, 20), below(19, 400), whole(*[50] * 16), whole(*[25] * 16))
def ctc_loss_of_concatenated_targets(x, targets, input_lengths, target_lengths):
    return functional.ctc_loss(x.log_softmax(2), targets + 1, input_lengths, target_lengths, reduction="none")


@reader(normal(200, 8), whole(*range(5, 100, 9)))
def tensor_split(x, indices):
    return torch.tensor_split(x, indices), x.tensor_split(indices, dim=0), x.tensor_split(torch.tensor(3) * 1)


@reader(normal(40, 8))
def to_dlpack(x):
    return torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)).clone()


@reader(normal(40, 8))
def to_dlpack_of_c(x):
    return torch.utils.dlpack.from_dlpack(torch._C._to_dlpack(x)).clone()


@reader(normal(40, 8))
def dlpack_protocol(x):
    return torch.from_dlpack(x).clone(), torch.tensor(np.from_dlpack(x)), torch.from_dlpack(x.__dlpack__()).clone()


@reader(normal(40, 8))
def apply_(x):
    before = x * 2
    remint.evict(before)
    remint.evict(x)
    x.apply_(lambda v: v + 1)
    remint.evict(x)
    return x, before


@reader(normal(40, 8), normal(40, 8))
def map_(x, y):
    before = x * 2
    remint.evict(before)
    remint.evict(x)
    x.map_(y, lambda a, b: a * b)
    remint.evict(x)
    return x, y, before


@reader(normal(40, 8), normal(40, 8), normal(40, 8))
def map2_(x, y, z):
    before = x * 2
    remint.evict(before)
    x.map2_(y, z, lambda a, b, c: a * b + c)
    return x, before


@reader(normal(40, 8))
def asarray(x):
    return torch.asarray(x), torch.asarray(x, dtype=torch.float64), torch.asarray(x, copy=True), torch.as_tensor(x)


@reader(normal(40, 8))
def array(x):
    return [
        torch.tensor(np.asarray(x)), torch.tensor(np.array(x)), torch.tensor(np.add(x, 1)), torch.from_numpy(x.numpy()),
        torch.tensor(np.asarray(memoryview(x.numpy()))), torch.as_tensor(x.numpy()), x.numpy(force=True).tobytes(),
        torch.tensor(x.__array__()), torch.frombuffer(x.numpy(), dtype=torch.float32).clone(),
    ]  # fmt: skip


@reader(normal(40, 8))
def array_of_a_view(x):
    view = x[3:7]
    remint.evict(x)
    first = torch.tensor(view.numpy())
    remint.evict(x)
    return first, view.tolist(), torch.tensor(x.t().numpy())


@reader(normal(40, 8))
def construct(x):
    return (
        torch.tensor(x.tolist()), torch.tensor([row[0] for row in x]), torch.tensor([list(row) for row in x]),
        x.new_tensor(x.tolist()), torch.FloatTensor(x.tolist()), torch.Tensor(x), nn.Parameter(x).detach(),
    )  # fmt: skip


@reader(normal(40, 8))
def pickled(x):
    buffer = io.BytesIO()
    ForkingPickler(buffer, 2).dump(x.clone())
    return pickle.loads(pickle.dumps(x)), pickle.loads(pickle.dumps({"a": [x, x[1:]]})), pickle.loads(buffer.getvalue())


@reader(normal(40, 8))
def copied(x):
    return copy.deepcopy(x), copy.copy(x), copy.deepcopy([x, x[2:]]), x.clone(), x.detach()


@reader(normal(40, 8))
def saved(x):
    results = []
    for zipped in (True, False):
        remint.evict(x)
        buffer = io.BytesIO()
        torch.save({"x": x, "view": x[3:]}, buffer, _use_new_zipfile_serialization=zipped)
        buffer.seek(0)
        results.append(torch.load(buffer))
    return results


@reader(normal(40, 8))
def saved_to_a_file(x):
    with tempfile.NamedTemporaryFile() as file:
        torch.save(x, file.name)
        first = torch.load(file.name)
        remint.evict(x)
        x.numpy().tofile(file.name)
        return first, torch.from_file(file.name, size=320).clone()


@reader(normal(20), normal(20), normal(20))
def default_collate(*x):
    collate = torch.utils.data.default_collate
    return collate(list(x)), collate([{"a": t, "b": (t, 1)} for t in x])


@reader(normal(6, 10, 4), whole(10, 9, 9, 4, 3, 1))
def pack_padded_sequence(x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    remint.evict(packed.batch_sizes)
    remint.evict(packed.data)
    return (
        packed.data,
        packed.batch_sizes,
        nn.utils.rnn.pad_packed_sequence(packed),
        nn.utils.rnn.unpack_sequence(packed),
    )


@reader(normal(6, 10, 4), whole(3, 9, 9, 4, 10, 1))
def pack_padded_sequence_unsorted(x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return packed.data, nn.utils.rnn.pad_packed_sequence(packed)


@reader(normal(10, 4), normal(7, 4), normal(5, 4))
def pack_sequence(*x):
    rnn = nn.utils.rnn
    padded = rnn.pad_sequence(x)
    return rnn.pack_sequence(x).data, padded, rnn.unpad_sequence(padded, torch.tensor([10, 7, 5]) * 1)


@reader(normal(210, 4), whole(*range(20, 0, -1)))
def pad_packed_sequence_made_by_hand(data, batch_sizes):
    return nn.utils.rnn.pad_packed_sequence(nn.utils.rnn.PackedSequence(data, batch_sizes))


def _recurrent(kind, **options):
    def program(data, batch_sizes):
        torch.manual_seed(0)
        model = kind(4, 8, 2, **options)
        out, _ = model(nn.utils.rnn.PackedSequence(data, batch_sizes))
        out.data.square().sum().backward()
        return (out.data.detach(), *(weight.grad for weight in model.parameters()))

    return program


for _kind in (nn.LSTM, nn.GRU, nn.RNN):
    for _both in (False, True):
        READERS[f"packed {_kind.__name__}{' both ways' if _both else ''}"] = (
            (normal(210, 4), whole(*range(20, 0, -1))),
            _recurrent(_kind, bidirectional=_both),
        )


@reader(normal(100, 4), whole(4, 6, 10, 20, 20, 15, 10, 10, 5), whole(0, 4, 10, 20, 40, 60, 75, 85, 95, 100))
def segments(x, lengths, offsets):
    return torch.segment_reduce(x, "sum", lengths=lengths, axis=0), torch.segment_reduce(
        x, "max", offsets=offsets, axis=0
    )


@reader(normal(10, 4), normal(5, 4))
def nested(a, b):
    first = torch.nested.nested_tensor([a, b])
    second = torch.nested.as_nested_tensor([a, b])
    jagged = torch.nested.nested_tensor([a, b], layout=torch.jagged) * 2
    return first.to_padded_tensor(0.0), second.unbind(), jagged.to_padded_tensor(0.0), jagged.unbind()


@reader(normal(100, 4), whole(0, 4, 10, 20, 40, 60, 75, 85, 95, 100))
def nested_from_jagged(values, offsets):
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
    return (jagged * 2).unbind(), jagged.sum(-1).values(), jagged.offsets()


@reader(normal(40, 8), whole(*range(9)), normal(9, 8))
def index(x, where, values):
    x[where] = values
    first = x * 1
    x.index_put_((where,), values, accumulate=True)
    x[where % 8, where % 8] = 3.0
    return x, first, x[where], x[where, where % 8], x[where > 4 if len(x) == 9 else where], x.index_select(0, where)


@reader(normal(40, 8), whole(*range(3, 13)))
def slices(x, where):
    return x[where[0] : where[3]], x[where[0]], x[int(where[1])], x.narrow(0, where[0], 2), x[..., where[1]]


@reader(whole(*range(3, 13)))
def scalars(x):
    numbers = [10 * k for k in range(20)]
    return [
        x[0].item(), int(x[1]), float(x[2]), bool(x[3]), list(range(x[4])), complex(x[5]), numbers[x[0]], len(x),
        f"{x[0]:d}", str(x), repr(x), f"{x}", x.tolist(), 3 in x, list(x), torch.zeros(x[0]).shape, x[1].__index__(),
        x.sum().item(), max(x).item(), sorted(x.tolist()), "yes" if x[0] > 2 else "no", [k for k in x if k % 2],
        torch.arange(int(x[2])), torch.full((2,), x[3].item()), torch.linspace(0, 1, x[2]), x.max().item() ** 2,
    ]  # fmt: skip


@reader(normal(40, 8))
def comparisons(x):
    return [
        x.sum() in x, bool((x > 100).any()), not (x > 100).any(), torch.equal(x, x.clone()), torch.allclose(x, x),
        x.isnan().any().item(), x.unique(), x.nonzero(), x[x > 0],
    ]  # fmt: skip


@reader(normal(40, 8))
def storages(x):
    raw = bytes(x.untyped_storage())
    remint.evict(x)
    typed = x.storage()
    other = torch.tensor([]).set_(x.untyped_storage().clone(), 0, (40, 8))
    return raw, typed[3], list(typed)[:4], x.untyped_storage().nbytes(), other


@reader(normal(40, 8))
def set_and_data(x):
    other = torch.empty(0).set_(x)
    another = torch.zeros(40, 8)
    another.data = x
    return other, other + 1, another, another * 2, x.data


@reader(normal(40, 8))
def shared(x):
    return x.share_memory_(), x.is_shared()


@reader(normal(40, 8))
def by_ctypes(x):
    import ctypes

    return list((ctypes.c_float * 320).from_address(x.data_ptr()))


@reader(normal(5))
def sobol(x):
    engine = torch.quasirandom.SobolEngine(20, scramble=True, seed=1)
    first = engine.draw(16)
    for tensor in (engine.quasi, engine.sobolstate):
        remint.evict(tensor)
    engine.fast_forward(8)
    for tensor in (engine.quasi, engine.sobolstate):
        remint.evict(tensor)
    return first, engine.draw(8)


@reader(normal(32, 16))
def quantized_parameters(x):
    return list(torch.choose_qparams_optimized(x.flatten(), 512, 200, 0.16, 8)), torch._choose_qparams_per_tensor(x)


@reader(normal(32, 16), lambda: torch.rand(100) > 0.5, normal(100, 16))
def pruned(x, mask, rows):
    return torch._rowwise_prune(rows, mask, torch.int64), torch._saturate_weight_to_fp16(x * 1e5)


@reader(normal(32, 16))
def quantized(x):
    q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
    scales = torch.rand(32, dtype=torch.float64) + 0.1
    per_channel = torch.quantize_per_channel(x, scales, torch.zeros(32) * 1, 0, torch.quint8)
    return q.int_repr(), q.dequantize(), torch.ops.quantized.add(q, q, 0.2, 0).dequantize(), per_channel.dequantize()


@reader(normal(32, 16), normal(4, 16), normal(32))
def packed_quantized_weights(weight, x, bias):
    """The packed weights keep the bias, and ops read it from there."""
    q = torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(q, bias)
    half = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    remint.evict(bias)
    return torch.ops.quantized.linear_dynamic(x, packed), torch.ops.quantized.linear_dynamic_fp16(x, half)


@reader(normal(32, 16), below(32, 10), whole(0, 2, 3, 4, 5, 6, 7, 8, 9))
def embeddings(weight, where, offsets):
    leaf = weight.detach().clone().requires_grad_()
    functional.embedding(where, leaf, sparse=True).sum().backward()
    return (
        functional.embedding_bag(where, weight, offsets), functional.embedding_bag(where, weight, offsets, mode="max"),
        functional.embedding(where, weight), leaf.grad.to_dense(),
    )  # fmt: skip


@reader(below(4, 2, 10), normal(20))
def sparse_coo(indices, values):
    sparse = torch.sparse_coo_tensor(indices, values[:10] * 1, (4, 4))
    remint.evict(indices)
    return sparse.to_dense(), sparse.coalesce().values(), sparse @ torch.ones(4, 4)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _compressed(layout):
    def program(dense):
        example = (dense * (dense > 0)).to_sparse(layout=layout, **blocks)
        rows = layout in (torch.sparse_csr, torch.sparse_bsr)
        parts = [
            (example.crow_indices() if rows else example.ccol_indices()).clone(),
            (example.col_indices() if rows else example.row_indices()).clone(),
            example.values().clone(),
        ]
        sparse = torch.sparse_compressed_tensor(*parts, dense.shape, layout=layout)
        results = []
        for op in (
            lambda: sparse.to_dense(),
            lambda: sparse @ torch.ones(16, 4),
            lambda: (sparse * 2).to_dense(),
            lambda: (-sparse).to_dense(),
            lambda: sparse.values() * 1,
            lambda: sparse.clone().to_dense(),
            lambda: str(sparse),
        ):
            for part in parts:
                remint.evict(part)
            results.append(op())
        return results

    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return program


for _layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr):
    READERS[str(_layout)] = ((normal(16, 16),), _compressed(_layout))


@reader(normal(16, 16))
def other_layouts(x):
    kept = x * (x > 0)
    return kept.to_sparse().to_dense(), kept.to_sparse_csr().to_dense(), x.to_mkldnn().relu().to_dense()


@reader(normal(40, 3), lambda: torch.linspace(-2, 2, 19), below(5, 40))
def counts(x, edges, numbers):
    flat = x.flatten()
    return (
        torch.histogramdd(x, [4, 4, 4]), torch.histogram(flat, edges), torch.bucketize(flat, edges),
        torch.searchsorted(edges, flat), torch.bincount(numbers), functional.one_hot(numbers),
        x.repeat_interleave(numbers, 0), torch.repeat_interleave(numbers),
    )  # fmt: skip


@torch.jit.script
def _scripted(x, numbers):
    for _ in range(int(numbers[0]) + 2):
        x = x * 2
    if bool((x > 0).any()):
        x = x + 1
    return x, int(numbers.sum())


@reader(normal(8, 8), below(3, 9))
def scripted(x, numbers):
    return _scripted(x, numbers), torch.jit.trace(lambda t: t * 2 + 1, (x,))(x)


@reader(normal(40, 8))
def transforms(x):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(forward_ad.make_dual(x, x.cos()).sin())
        primal, tangent = dual.primal.clone(), dual.tangent.clone()
    return torch.func.vmap(torch.sum)(x), torch.func.jacrev(lambda t: t.sin().sum())(x), primal, tangent


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


def results_of(program, inputs):
    leaves = tree_leaves(program(*inputs))
    return [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


@pytest.mark.parametrize("chaos", [False, True], ids=["evicted", "chaos"])
@pytest.mark.parametrize("name", READERS)
def test_reading_evicted_tensors(name, chaos):
    make, program = READERS[name]
    torch.manual_seed(0)
    sources = [one() for one in make]
    torch.manual_seed(1)
    expected = results_of(program, [source.clone() for source in sources])
    torch.manual_seed(1)
    with remint.budget("64MiB", chaos=chaos, check=True) as run:
        inputs = [source.clone() for source in sources]
        for tensor in inputs:
            # Tensors of up to one block are not worth it, but chaos evicts them.
            assert remint.evict(tensor) or tensor.nbytes <= 64
        found = results_of(program, inputs)
    assert len(expected) == len(found)
    for k, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert equal(a, b), (k, a, b)
    assert run.num_evictions > 0 or all(tensor.nbytes <= 64 for tensor in inputs)
