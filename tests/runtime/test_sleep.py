"""Budgets that sleep while memory is plentiful: the same bits, and awake in time when it is not."""

import copy
import os
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import remint

pytestmark = pytest.mark.runtime
WIDTH = 32


def mlp(seed=0, depth=4, dropout=0.2):
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(dropout)) for _ in range(depth)]
    return nn.Sequential(*layers)


def train(model, batches, name="sgd"):
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name](model.parameters(), 0.01)
    losses = []
    for x in batches:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses + [p.detach().clone() for p in model.parameters()]


def same(first, second):
    return len(first) == len(second) and all(map(torch.equal, first, second))


def peak_of(batch, name="sgd"):
    with remint.budget("1GiB", learn=False) as run:
        train(mlp(), [batch] * 2, name)
    return run.peak_bytes


def asleep(run):
    """Have this thread's budget fall asleep."""
    for _ in range(4):
        run.step()
    before = run.num_ops
    torch.ones(100) + 1
    return run.num_ops == before


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_step_that_fits_is_slept_through(name):
    batches = [torch.randn(64, WIDTH)] * 10
    model, other = mlp(), mlp()
    torch.manual_seed(1)
    expected = train(model, batches, name)
    torch.manual_seed(1)
    with remint.budget("64MiB", check=True) as run:
        found = train(other, batches, name)
    assert same(expected, found)
    assert run.learning.num_asleep_steps >= 5
    assert run.learning.num_wakes == 0
    assert "asleep" in str(run)


TIER = remint.Offload(bytes="64MiB", bandwidth="1GB")


def test_a_tier_that_is_not_needed_costs_nothing_per_op():
    batches = [torch.randn(64, WIDTH)] * 20
    model, other = mlp(), mlp()
    torch.manual_seed(1)
    expected = train(model, batches, "adam")
    torch.manual_seed(1)
    with remint.budget("64MiB", offload=TIER, check=True) as run:
        found = train(other, batches[:12], "adam")[:12]
        seen = run.num_ops
        del found
        for _ in range(3):
            train(mlp(), batches[:4])
        assert run.num_ops == seen, "no op was watched"
    assert run.num_offloads == 0
    assert run.learning.num_wakes == 0
    torch.manual_seed(1)
    other = mlp()
    torch.manual_seed(1)
    with remint.budget("64MiB", offload=TIER) as run:
        found = train(other, batches, "adam")
    assert same(expected, found)
    assert run.learning.num_asleep_steps >= 10


def test_a_budget_with_a_tier_wakes_up_and_offloads():
    small, large = torch.randn(8, WIDTH), torch.randn(1024, WIDTH)
    budget = int(0.6 * peak_of(large, "adam"))
    batches = [small] * 14 + [large] * 4
    model, other = mlp(), mlp()
    torch.manual_seed(1)
    expected = train(model, batches, "adam")
    torch.manual_seed(1)
    quick = remint.Offload(bytes="64MiB", bandwidth="1TB", latency=0)
    with remint.budget(budget, offload=quick, check=True, max_slowdown=None) as run:
        found = train(other, batches, "adam")
    assert same(expected, found)
    assert run.learning.num_asleep_steps >= 3
    assert run.learning.num_wakes >= 1
    assert run.num_offloads > 0
    assert run.peak_bytes <= budget


def test_what_fits_only_just_is_watched():
    x = torch.randn(256, WIDTH)
    with remint.budget(int(1.2 * peak_of(x))) as run:
        train(mlp(), [x] * 8)
    assert run.learning.num_asleep_steps == 0


def test_a_larger_batch_wakes_it_up():
    small, large = torch.randn(8, WIDTH), torch.randn(1024, WIDTH)
    budget = int(0.7 * peak_of(large))
    batches = [small] * 6 + [large] * 4 + [small] * 12
    model, other = mlp(), mlp()
    torch.manual_seed(1)
    expected = train(model, batches)
    torch.manual_seed(1)
    with remint.budget(budget, check=True) as run:
        found = train(other, batches)
    assert same(expected, found)
    assert run.learning.num_wakes >= 1
    assert run.learning.last_wake
    assert run.num_evictions > 0
    assert run.peak_bytes <= budget
    # It falls asleep again.
    assert run.learning.num_asleep_steps >= 6


def test_other_requests_wake_it_up_where_much_is_in_use():
    some, more = torch.randn(256, WIDTH), torch.randn(257, WIDTH)
    with remint.budget(int(2.5 * peak_of(some))) as run:
        train(mlp(), [some] * 8)
        slept = run.learning.num_asleep_steps
        train(mlp(), [more] * 2)
    assert slept >= 4
    assert run.learning.num_wakes >= 1
    assert run.learning.last_wake == "other requests for memory"


def test_loops_without_steps():
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    with remint.budget("16MiB") as run:
        for _ in range(4000):
            c = a + b
        seen = run.num_ops
        kept = [c * i for i in range(10)]
    assert 1000 < seen < 3000
    assert all(torch.equal(k, (a + b) * i) for i, k in enumerate(kept))


def test_memory_that_grows_keeps_it_awake():
    a = torch.randn(8, 8)
    with remint.budget("16MiB") as run:
        kept = [a + i for i in range(4000)]
    assert run.num_ops >= 4000
    assert torch.equal(kept[-1], a + 3999)


def test_writes_while_asleep_do_not_reach_what_was_computed_before():
    with remint.budget("4MiB", check=True) as run:
        x = torch.arange(64.0) + 1
        y = x * 2
        before = y.clone()
        assert asleep(run)
        x.add_(1)
        remint.evict(y)
        assert torch.equal(y, before)


def test_writes_after_waking_up_do_not_reach_what_was_computed_before():
    with remint.budget("4MiB", check=True) as run:
        assert asleep(run)
        made_asleep = torch.arange(256.0) + 1
        held = torch.zeros(600_000)  # more than half of the budget
        _ = [None for _ in range(10)]
        y = made_asleep * 2
        expected = y.clone()
        assert run.learning.num_wakes == 1
        assert remint.evict(y)
        made_asleep.add_(1)
        assert torch.equal(y, expected)
        assert not remint.evict(made_asleep)
        assert held.sum() == 0


def test_a_block_that_is_used_again_has_its_new_size():
    with remint.budget("4MiB", check=True) as run:
        assert asleep(run)
        smaller = torch.zeros(50) + 1
        del smaller
        made_asleep = torch.arange(62.0) + 1  # the block of the one before fits
        held = torch.zeros(600_000)
        _ = [None for _ in range(10)]
        y = made_asleep * 2
        assert run.learning.num_wakes == 1
        assert remint.evict(y)
        assert torch.equal(y, torch.arange(62.0) * 2 + 2)
        assert held.sum() == 0


def test_nothing_wakes_up_in_a_backward_pass():
    """Memory grows in the backward pass alone: what is made there stays, and the next op is seen."""

    wakes = []

    class Grows(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            parts = [grad * i for i in range(300)]
            wakes.append(run.learning.num_wakes)
            return sum(parts)

    with remint.budget("1MiB", check=True) as run:
        x = torch.randn(256, requires_grad=True)
        assert asleep(run)
        Grows.apply(x).sum().backward()
        assert wakes == [0]
        y = x.detach() * 2
        assert run.learning.num_wakes == 1
        assert torch.equal(x.grad, torch.full_like(x, sum(range(300))))
        before = run.num_ops
        y = y + 1
        assert run.num_ops > before
    assert torch.equal(y, x.detach() * 2 + 1)


def test_other_threads_read_what_was_made_asleep():
    wrong = []

    def read(t, expected):
        for _ in range(2000):
            if t.sum() != expected:
                wrong.append(1)

    with remint.budget("4MiB") as run:
        assert asleep(run)
        t = torch.arange(4096.0) * 1
        reader = threading.Thread(target=read, args=(t, torch.arange(4096.0).sum()))
        reader.start()
        # Wakes it up, and evicts.
        held = [torch.full((100_000,), float(i)) * 2 for i in range(20)]
        reader.join()
        assert run.num_evictions > 0
        assert all(torch.equal(h, torch.full((100_000,), 2.0 * i)) for i, h in enumerate(held))
    assert not wrong


def test_only_the_main_thread_sleeps():
    found = []

    def work():
        with remint.budget("16MiB") as run:
            found.append(asleep(run))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.parametrize("option", ["timeline", "events", "blocks", "source_lines"])
def test_whoever_wants_to_see_everything_does(option):
    with remint.budget("16MiB", **{option: True}) as run:
        assert not asleep(run)


def test_given_costs_are_those_of_ops_that_are_seen():
    with remint.budget("16MiB", costs=[1e-6] * 10_000) as run:
        assert not asleep(run)


def test_a_budget_inside_of_one_that_sleeps():
    with remint.budget("16MiB", check=True) as outer:
        weights = torch.randn(64, 64)
        assert asleep(outer)
        x = torch.randn(64, 64) * 2
        with remint.budget("1MiB", check=True) as inner:
            y = x @ weights
            expected = y.clone()
            assert remint.evict(y)
            x.add_(1)
            assert torch.equal(y, expected)
        assert inner.num_ops > 0
        before = outer.num_ops
        z = y + 1
        assert outer.num_ops == before
    assert torch.equal(z, expected + 1)


def test_a_budget_of_another_thread_is_told_of_writes():
    """A thread that sleeps updates a weight from which another budget computed something."""
    w = torch.randn(64, 64)
    read, written, found = threading.Event(), threading.Event(), []

    def work():
        with remint.budget("4MiB", check=True):
            y = w * 2
            expected = y.clone()
            remint.evict(y)
            read.set()
            written.wait(60)
            found.append(torch.equal(y, expected))

    with remint.budget("16MiB") as run:
        w + 1
        assert asleep(run)
        thread = threading.Thread(target=work)
        thread.start()
        assert read.wait(60)
        w.add_(1)
        written.set()
        thread.join()
    assert found == [True]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_asleep():
    with remint.budget("16MiB") as run:
        assert asleep(run)
        x = torch.ones(1000) * 2
        child = os.fork()
        if child == 0:
            os._exit(0 if (x + 1).sum() == 3000 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (x + 1).sum() == 3000


def test_tensors_made_asleep_outlive_the_budget():
    with remint.budget("16MiB") as run:
        assert asleep(run)
        kept = [torch.full((n,), float(n)) * 2 for n in (10, 100, 1000, 10_000)]
        dropped = [torch.full((n,), float(n)) * 2 for n in (10, 100, 1000)]
        del dropped
    assert all((k == 2 * len(k)).all() for k in kept)


@settings(deadline=None)
@given(
    sizes=st.lists(st.sampled_from([4, 16, 64, 256, 512]), min_size=4, max_size=24),
    repeats=st.integers(1, 4),
    name=st.sampled_from(["sgd", "adam"]),
    part=st.sampled_from([0.75, 1.0, 2.2, 8.0]),
    odd=st.sets(st.integers(0, 23), max_size=4),
    seed=st.integers(0, 1000),
)
def test_programs_that_grow_shrink_and_keep_tensors(sizes, repeats, name, part, odd, seed):
    torch.manual_seed(seed)
    inputs = {n: torch.randn(n, WIDTH) for n in set(sizes)}
    batches = [inputs[n] for n in sizes for _ in range(repeats)]
    model = mlp(seed)
    other = copy.deepcopy(model)
    budget = int(part * peak_of(inputs[max(sizes)], name)) + 4 * inputs[max(sizes)].nbytes

    def run_program(net):
        optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name](net.parameters(), 0.01)
        torch.manual_seed(seed)
        kept, results = [], []
        running = torch.zeros(WIDTH)
        for number, x in enumerate(batches):
            optimizer.zero_grad(set_to_none=number % 3 != 0)
            h = net(x)
            if number in odd:
                kept.append(h.detach()[:1] * 2)
                kept[0].add_(1)
            if number % 5 == 4 and kept:
                results.append(kept.pop().clone())
            running.mul_(0.9).add_(h.detach().mean(0))
            loss = h.square().mean()
            loss.backward()
            optimizer.step()
            results.append(loss.detach())
        return [*results, *kept, running, *(p.detach().clone() for p in net.parameters())]

    expected = run_program(model)
    with remint.budget(budget, check=True) as run:
        found = run_program(other)
    assert same(expected, found)
    assert run.peak_bytes <= run.budget_bytes
