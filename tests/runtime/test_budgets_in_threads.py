"""Threads with a budget each, at the same time: every one gets the numbers of a run without a budget.

Every test that may deadlock runs in a process of its own under a time limit. Threads hand over by events and barriers.
"""

import gc
import random
import threading
import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import remint
from tests.support.isolated import isolated
from tests.support.threads import READERS, SECONDS, SIDE, Threads, in_threads, sources

pytestmark = pytest.mark.threads

COSTS = [1e-6] * 10_000
THREADS = 3
ROUNDS = 3


def step(weight):
    x = weight.clone().requires_grad_()
    y = x
    for _ in range(20):
        y = torch.tanh(y @ weight) + y * 0.5
    y.sum().backward()
    return y.detach(), x.grad


def test_budgets_do_not_disturb_each_other():
    weights = [torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(THREADS)]
    expected = [step(weight) for weight in weights]
    together, same, counts = threading.Barrier(THREADS), [0] * THREADS, [0] * THREADS

    def work(thread):
        for _ in range(ROUNDS):
            together.wait()
            with remint.budget("160KiB", costs=COSTS) as run:
                found = step(weights[thread])
            same[thread] += all(map(torch.equal, expected[thread], found))
            counts[thread] += run.num_rematerializations > 0 and run.peak_bytes <= run.budget_bytes

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == counts == [ROUNDS] * THREADS


@torch.jit.script
def _in_the_pool(a: torch.Tensor, b: torch.Tensor):
    first = torch.jit.fork(torch.matmul, a, b)
    second = torch.jit.fork(torch.mul, a, b)
    return torch.jit.wait(first) + torch.jit.wait(second)


@isolated(60)
def test_the_interpreters_threads_work_for_the_budget_that_asked():
    """`torch.jit.fork` runs on threads of C++ that take over the caller's thread-local state."""
    plain = sources(2)
    expected = _in_the_pool(*plain)
    for _ in range(3):  # the interpreter specialises in its first runs
        _in_the_pool(*plain)

    def program(runs):
        with remint.budget("12MiB") as run:
            a, b = plain[0] * 1, plain[1] * 1
            for _ in range(20):
                remint.evict(a)
                remint.evict(b)
                found = _in_the_pool(a, b)
                assert torch.equal(found, expected)
        runs.append(run)

    alone, together = [], []
    program(alone)
    program(alone)
    assert alone[0].num_ops == alone[1].num_ops
    in_threads(*[lambda: program(together)] * 3)
    for run in together:
        assert run.num_ops == alone[0].num_ops
        assert run.peak_bytes <= run.budget_bytes


@pytest.mark.parametrize(
    ("reader", "nested"),
    [("sum", False), ("sum", True), ("matmul", False), ("tolist", True), ("backward", False), ("numpy", False)],
)
@isolated(60)
def test_two_budgets_read_each_others_tensors(reader, nested):
    plain = sources(4)
    expected = [READERS[reader](t * 2) for t in plain]
    both, finished, threads = threading.Barrier(2), threading.Barrier(2), Threads()
    tensors = [[], []]

    def inside(me):
        with remint.budget("12MiB") as run:
            tensors[me].extend(t * 2 for t in plain)
            both.wait()
            if nested:
                with remint.budget("12MiB"):
                    read(me)
            else:
                read(me)
            finished.wait()  # nobody ends a budget that the other still reads from
        assert run.peak_bytes <= run.budget_bytes

    def read(me):
        choose = random.Random(me)
        end, reads = time.monotonic() + SECONDS, 0
        # At least some, however busy the machine is.
        while (time.monotonic() < end or reads < 20) and not threads.stop.is_set():
            k = choose.randrange(4)
            found = READERS[reader](tensors[1 - me][k])
            assert torch.equal(found, expected[k]), (reads, k)
            remint.evict(tensors[me][k])
            remint.evict(tensors[1 - me][k])
            torch.full((SIDE, SIDE), 1.0)
            reads += 1

    threads.start(inside, 0)
    threads.start(inside, 1)
    threads.join()


@isolated(60)
def test_two_budgets_write_each_others_tensors():
    """Thread 0 writes the tensors of budget 1, and the other way round; what was computed before stays."""
    plain = sources(2)
    for t in plain:
        t.mul_(100).round_()
    turn, tensors, rounds = threading.Barrier(2, timeout=30), [None, None], 40

    def inside(me):
        try:
            with remint.budget("12MiB"):
                tensors[me] = plain[me] * 2
                for k in range(rounds):
                    before = tensors[me] * 3
                    remint.evict(before)
                    turn.wait()
                    tensors[1 - me].add_(1)  # both write at once, each what the other owns
                    turn.wait()
                    assert torch.equal(before, (plain[me] * 2 + k) * 3), k
                    assert torch.equal(tensors[me], plain[me] * 2 + k + 1), k
                turn.wait()
            turn.wait()
            assert torch.equal(tensors[1 - me], plain[1 - me] * 2 + rounds)
        except BaseException:
            turn.abort()
            raise

    in_threads(lambda: inside(0), lambda: inside(1))


@isolated(60)
def test_two_budgets_compute_from_each_others_tensors_and_outlive_each_other():
    """A value whose recipe reads a tensor of another budget, after that budget has ended."""
    plain = sources(2)
    made, ended, tensors, found = threading.Event(), threading.Event(), [], []

    def first():
        with remint.budget("12MiB"):
            tensors.append(plain[0] * 2)
            made.set()
            ready.wait()
        tensors.clear()
        gc.collect()
        ended.set()

    def second():
        with remint.budget("12MiB"):
            made.wait()
            value = tensors[0] * 3
            remint.evict(value)
            ready.set()
            ended.wait()
            found.append(value)
            assert torch.equal(value, plain[0] * 6)

    ready = threading.Event()
    in_threads(first, second)
    assert torch.equal(found[0], plain[0] * 6)


def _checkpointed(x, weights, depth):
    if depth == 0:
        return x
    return checkpoint(
        lambda t: _checkpointed((t * weights[depth % len(weights)]).sin(), weights, depth - 1), x, use_reentrant=True
    )


def _deep(depth, rows, weights, **options):
    x = torch.linspace(-1, 1, rows * 16).reshape(rows, 16).requires_grad_()
    with remint.budget(**options) as run:
        _checkpointed(x, weights, depth).square().sum().backward()
    return x.grad, run


# They take 5 and 15 seconds of CPU time: the limit is for a busy machine.
@pytest.mark.slow
@pytest.mark.parametrize("options", [{"budget": "64MiB"}, {"budget": "1MiB", "chaos": True}])
@isolated(240)
def test_deep_reentrant_checkpointing_in_three_threads(options):
    """Beyond a depth of 60 autograd goes on in helper threads, which must work for the budget that asked."""
    weights = [torch.randn(16, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    jobs = [(70, 8), (75, 16), (64, 32)]
    alone = [_deep(*job, weights, **options) for job in jobs]
    for _ in range(2):
        together = [None] * len(jobs)
        start = threading.Barrier(len(jobs), timeout=60)

        def work(k):
            start.wait()
            together[k] = _deep(*jobs[k], weights, **options)

        in_threads(*(lambda k=k: work(k) for k in range(len(jobs))))
        for (expected, one), (found, other) in zip(alone, together, strict=True):
            assert torch.equal(expected, found)
            assert other.num_ops == one.num_ops
            assert other.peak_bytes <= other.budget_bytes


@isolated(60)
def test_backward_of_a_graph_of_another_budget():
    """The graph is made in the budget of one thread; its backward runs in another, in a budget or in none."""
    plain = sources(2)

    def graph():
        leaf = plain[0].clone().requires_grad_()
        return leaf, ((leaf * plain[1]).sin() * leaf).sum()

    leaf, loss = graph()
    loss.backward()
    expected = leaf.grad
    for budget in (None, "16MiB"):
        made, done, shared = threading.Event(), threading.Event(), []

        def inside():
            with remint.budget("8MiB", chaos=True):
                shared.extend(graph())
                made.set()
                done.wait()

        def other(budget):
            made.wait()
            try:
                if budget is None:
                    shared[1].backward()
                else:
                    with remint.budget(budget):
                        shared[1].backward()
            finally:
                done.set()

        in_threads(inside, lambda budget=budget: other(budget))
        assert torch.equal(shared[0].grad, expected)


def _train(model, x, **options):
    with remint.budget(**options) as run:
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
    return [loss.detach(), *grads], run


@isolated(60)
def test_many_budgets_at_once_share_weights():
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
    inputs = [torch.randn(64 * (k % 4 + 1), 64) for k in range(8)]
    options = [{"budget": "4MiB"}, {"budget": "700KiB"}, {"budget": "4MiB", "chaos": True}]
    jobs = [(k, i) for k in range(len(inputs)) for i in range(len(options))]
    alone = {job: _train(model, inputs[job[0]], **options[job[1]]) for job in jobs}

    def work(seed):
        choose = random.Random(seed)
        for _ in range(15):
            job = choose.choice(jobs)
            found, run = _train(model, inputs[job[0]], **options[job[1]])
            expected, one = alone[job]
            for a, b in zip(expected, found, strict=True):
                assert torch.equal(a, b)
            # No budget sees the ops and the bytes of another.
            assert run.num_ops == one.num_ops
            assert run.peak_bytes <= run.budget_bytes

    in_threads(*(lambda seed=seed: work(seed) for seed in range(6)))


@isolated(60)
def test_one_budget_object_in_many_threads():
    budget, source = remint.budget("2MiB"), torch.ones(100, 100)
    start = threading.Barrier(4, timeout=30)

    def work():
        start.wait()
        for k in range(1, 30):
            with budget as run:
                t = source * k
                remint.evict(t)
                assert t.sum().item() == 10_000 * k
            assert run.num_rematerializations >= 1

    in_threads(*[work] * 4)


@isolated(60)
def test_nested_budgets_in_threads():
    plain = sources(2)

    def work():
        for _ in range(10):
            with remint.budget("12MiB", check=True) as outer:
                a = plain[0] * 2
                b = a + 1
                remint.evict(a)
                with remint.budget("8MiB", check=True) as middle:
                    c = b * 3
                    remint.evict(b)
                    remint.evict(c)
                    with remint.budget("8MiB", check=True) as inner:
                        d = c + a
                    remint.evict(a)
                    assert torch.equal(c, (plain[0] * 2 + 1) * 3)
                assert torch.equal(d, (plain[0] * 2 + 1) * 3 + plain[0] * 2)
                a.zero_()
                assert torch.equal(b, plain[0] * 2 + 1)
            assert torch.equal(d, (plain[0] * 2 + 1) * 3 + plain[0] * 2)
            for run in (outer, middle, inner):
                assert 0 < run.peak_bytes <= run.budget_bytes

    in_threads(work, work, work)


def test_symbolic_sizes_with_two_budgets_open():
    """Where two are open, each argument is looked at; the size of a fake tensor must not be asked for."""
    with remint.budget("64MiB"), remint.budget("32MiB"):
        compiled = torch.compile(lambda x: (x * 2).relu().sum(), backend="aot_eager", dynamic=True)
        for rows in (5, 7, 9):
            x = torch.randn(rows, 4, requires_grad=True)
            compiled(x).backward()
            assert torch.equal(x.grad, (x > 0) * 2.0)
