"""Threads outside of a budget read and write its tensors: they get the right numbers.

Every test that may deadlock runs in a process of its own under a time limit. Threads hand over by events and barriers.
"""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import remint
from tests.support.isolated import isolated
from tests.support.threads import READERS, SIDE, Threads, in_threads, keep_evicting, read_all_the_time, sources

pytestmark = pytest.mark.threads


@pytest.mark.parametrize("reader", READERS)
@isolated(60)
def test_a_thread_outside_reads(reader):
    plain = sources()
    expected = [READERS[reader](t * 2) for t in plain]
    for seed in range(2):
        ready, threads, tensors = threading.Event(), Threads(), []
        done = threading.Event()

        def evict():
            with remint.budget("12MiB") as run:
                tensors.extend(t * 2 for t in plain)
                ready.set()
                keep_evicting(tensors, seed, done)
            assert run.num_rematerializations > 0
            assert run.peak_bytes <= run.budget_bytes

        def read():
            ready.wait()
            try:
                read_all_the_time(reader, tensors, expected, seed, threads.stop)
            finally:
                done.set()

        threads.start(evict)
        threads.start(read)
        threads.join()


@isolated(60)
def test_a_pool_of_threads_outside_reads():
    plain = sources()
    expected = {reader: [READERS[reader](t * 2) for t in plain] for reader in ("sum", "index", "matmul", "tolist")}
    with remint.budget("12MiB") as run, ThreadPoolExecutor(4) as pool:
        tensors = [t * 2 for t in plain]
        never, done = threading.Event(), threading.Event()
        jobs = [
            pool.submit(read_all_the_time, reader, tensors, expected[reader], seed, never)
            for seed, reader in enumerate(expected)
        ]
        for job in jobs:
            job.add_done_callback(lambda _: done.set() if all(job.done() for job in jobs) else None)
        keep_evicting(tensors, 0, done)
        for job in jobs:
            job.result()
    assert run.peak_bytes <= run.budget_bytes


@isolated(60)
def test_a_thread_outside_writes_what_was_read_before():
    plain = sources(1)[0]
    to_b, to_a = threading.Barrier(2), threading.Barrier(2)
    shared = []

    def inside():
        with remint.budget("12MiB") as run:
            t = plain * 2
            shared.append(t)
            for turn in range(50):
                before = t + 1
                late = before * 3
                assert remint.evict(before)
                assert remint.evict(late)
                if turn % 2:
                    remint.evict(t)
                to_b.wait()
                to_a.wait()  # the other thread has written to t
                assert torch.equal(late, (plain * 2 + turn + 1) * 3), turn
                assert torch.equal(before, plain * 2 + turn + 1), turn
                assert torch.equal(t, plain * 2 + turn + 1), turn
        assert run.peak_bytes <= run.budget_bytes

    def outside():
        for _ in range(50):
            to_b.wait()
            shared[0].add_(1)
            to_a.wait()

    # Whole numbers: adding one many times is exact.
    plain.mul_(100).round_()
    threads = Threads()

    def guarded(function):
        try:
            function()
        except BaseException:
            to_a.abort()
            to_b.abort()
            raise

    threads.start(guarded, inside)
    threads.start(guarded, outside)
    threads.join()


@pytest.mark.parametrize("seed", range(3))
@isolated(60)
def test_a_value_is_recomputed_while_another_thread_writes_its_source(seed):
    """The program never reads `t` and writes it at once; only the recipe of `value` reads it."""
    plain = sources(1)[0].mul_(100).round_()
    ready, done, threads = threading.Event(), threading.Event(), Threads()
    shared, writes = [], 300

    def inside():
        with remint.budget("12MiB"):
            t = plain * 2
            value = t * 3
            shared.append(t)
            ready.set()
            while not done.is_set():
                remint.evict(value)
                torch.full((3 * SIDE, SIDE), 7.0)
                assert torch.equal(value, plain * 6)
            assert torch.equal(t, plain * 2 + writes)
        assert torch.equal(value, plain * 6)

    def outside():
        ready.wait()
        try:
            for k in range(writes):
                if threads.stop.is_set():
                    break
                if (k + seed) % 3:
                    shared[0].add_(1)
                else:
                    shared[0].view(-1)[: SIDE * SIDE // 2].add_(1)
                    shared[0][SIDE // 2 :].add_(1)
        finally:
            done.set()

    threads.start(inside)
    threads.start(outside)
    threads.join()


@isolated(60)
def test_a_constant_is_written_by_a_thread_outside():
    """A tensor made before the budget is an ordinary one. A write to it must not change what was computed from it.

    Nothing of remint runs in the thread that writes. The tensor's version shows at a replay that it was written to: the
    value is right, or there is a clear error.
    """
    weight = sources(1)[0].mul_(100).round_()
    first = weight.clone()
    to_b, to_a = threading.Barrier(2), threading.Barrier(2)

    def inside():
        with remint.budget("12MiB"):
            value = weight * 2
            assert remint.evict(value)
            to_b.wait()
            to_a.wait()
            try:
                found.append(value * 1)
            except RuntimeError as error:
                assert "remint" in str(error), error  # noqa: PT017
                refused.append(error)
            del value

    def outside():
        to_b.wait()
        weight.add_(1)
        to_a.wait()

    found, refused = [], []
    in_threads(inside, outside)
    assert refused or torch.equal(found[0], first * 2)


@isolated(60)
def test_reads_go_on_while_the_budget_ends():
    plain = sources()
    expected = [(t * 2).sum() for t in plain]
    for seed in range(8):
        ready, threads, tensors = threading.Event(), Threads(), []

        def inside():
            with remint.budget("6MiB"):
                tensors.extend(t * 2 for t in plain)
                for _ in range(3):
                    for t in tensors:
                        remint.evict(t)
                    torch.ones(3 * SIDE, SIDE)
                ready.set()

        def outside(seed):
            ready.wait()
            read_all_the_time("sum", tensors, expected, seed, threads.stop, seconds=0.3)

        threads.start(inside)
        threads.start(outside, seed)
        threads.start(outside, seed + 100)
        threads.join()
        assert all(remint.is_resident(t) for t in tensors)


@isolated(60)
def test_reads_after_the_budget_ended():
    plain, tensors, kept = sources(8), [], []

    def inside():
        with remint.budget("6MiB") as run:
            tensors.extend(t * 2 for t in plain)
            kept.append(tensors[0][3:5].t())
            leaf = plain[0].clone().requires_grad_()
            kept.extend((leaf, (leaf * tensors[1]).sum()))
        assert run.num_evictions > 0

    in_threads(inside)  # the thread is gone, its thread-local state too

    def outside():
        for t, source in zip(tensors, plain, strict=True):
            assert torch.equal(t, source * 2)
            assert np.array_equal(t.numpy(), (source * 2).numpy())
        assert torch.equal(kept[0], (plain[0] * 2)[3:5].t())

    in_threads(outside, outside)
    view, leaf, loss = kept
    loss.backward()
    assert torch.equal(leaf.grad, plain[1] * 2)
    view.zero_()
    assert tensors[0][3:5].count_nonzero() == 0
    tensors.clear()
    kept.clear()
    gc.collect()


@isolated(60)
def test_tensors_die_in_another_thread():
    """Tensors of a budget are handed to another thread, and the last reference goes there: during it and after it."""
    from queue import Queue

    queue, count = Queue(), 400

    def inside():
        with remint.budget("4MiB", check=True) as run:
            for k in range(count):
                t = torch.ones(64, 64) * k
                if k % 3 == 0:
                    remint.evict(t)
                queue.put((k, t))
                del t
            assert run.used_bytes <= run.budget_bytes
        queue.put(None)

    def outside():
        seen = 0
        while (item := queue.get()) is not None:
            k, t = item
            assert t[0, 0].item() == k
            del item, t
            seen += 1
        assert seen == count

    in_threads(inside, outside)
