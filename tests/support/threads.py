"""Threads that read and evict tensors at the same time.

The loops run for a fixed time, because what they look for depends on how the threads interleave.
"""

import random
import threading
import time

import numpy as np
import torch

import remint

SECONDS = 0.7
SIDE = 512  # a tensor of 1 MiB
ROUNDS = 10  # of evictions, at least: the threads may not run in parallel


class Threads:
    """Start threads, wait for all of them, raise the first error of any."""

    def __init__(self):
        self._threads, self._errors = [], []
        # An error in one thread ends the loops of the others.
        self.stop = threading.Event()

    def start(self, function, *args):
        def guarded():
            try:
                function(*args)
            except BaseException as error:
                self._errors.append(error)
                self.stop.set()

        self._threads.append(threading.Thread(target=guarded))
        self._threads[-1].start()

    def join(self):
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


def in_threads(*functions):
    threads = Threads()
    for function in functions:
        threads.start(function)
    threads.join()


def sources(count=4):
    return [torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(i)) for i in range(count)]


def keep_evicting(tensors, seed, stop):
    """Allocate, compute and evict until told to stop, at least ROUNDS times: `tensors` lose their bytes each time."""
    choose = random.Random(seed)
    others = [torch.ones(SIDE, SIDE) * i for i in range(8)]
    rounds = 0
    while not stop.is_set() or rounds < ROUNDS:
        torch.full((2 * SIDE, SIDE), float(rounds)).add_(1)  # bytes of evicted tensors get other contents
        remint.evict(choose.choice(tensors))
        k = choose.randrange(len(others))
        assert others[k][0, 0].item() == k
        if choose.random() < 0.2:
            remint.materialize(choose.choice(tensors))
        rounds += 1


def _gradient(t):
    x = t.detach().requires_grad_()
    (grad,) = torch.autograd.grad((x * x).sum(), x)
    return grad


READERS = {
    "sum": lambda t: t.sum(),
    "matmul": lambda t: t[:64] @ t[:, :64],
    "backward": lambda t: _gradient(t)[::7],
    "tolist": lambda t: torch.tensor(t[:2, ::16].tolist()),
    "tolist of all": lambda t: torch.tensor(t.tolist())[::5],
    "item": lambda t: torch.tensor(t[3, 5].item()),
    "index": lambda t: t[torch.arange(0, SIDE, 3), 7],
    "mask": lambda t: t[t > 1],
    "print": lambda t: torch.tensor([ord(c) for c in repr(t[:3])]),
    "copy": lambda t: torch.empty(SIDE, SIDE).copy_(t)[::9],
    "numpy": lambda t: torch.from_numpy(t.numpy()[::9].copy()),
    "array": lambda t: torch.from_numpy(np.asarray(t)[::9].copy()),
}


def read_all_the_time(reader, tensors, expected, seed, stop, seconds=SECONDS):
    """Read tensors at random; a read gives the right numbers, or an error that names remint and what to do."""
    choose = random.Random(seed)
    right = refused = 0
    wrong, unclear = [], []
    end = time.monotonic() + seconds
    # On a busy machine the first read may take longer than that.
    while (time.monotonic() < end or not right) and right < 30_000 and not stop.is_set():
        k = choose.randrange(len(tensors))
        try:
            found = READERS[reader](tensors[k])
        except RuntimeError as error:
            # The program did nothing behind PyTorch's back, so the error must not say that it did.
            if "remint" in str(error) and "around PyTorch's dispatcher" not in str(error):
                refused += 1
            else:
                unclear.append(error)
        else:
            if torch.equal(found, expected[k]):
                right += 1
            else:
                wrong.append((k, found.flatten()[:3], expected[k].flatten()[:3]))
    counts = f"{right} right, {len(wrong)} wrong, {refused} refused, {len(unclear)} unclear errors"
    print(f"{reader}, seed {seed}: {counts}")
    assert not wrong, f"{counts}; the first: {wrong[0]}"
    assert not unclear, f"{counts}; the first: {unclear[0]}"
    assert right > 0 or stop.is_set()
