"""Copies of tensors in the tier of a compiled step: the ops that a plan's offload and fetch steps become.

A copy is known by a ticket: a tensor of one number, which the forward can save for the backward like any other. When
its memory goes, so does the copy, whatever became of the step. Transfers run in a thread of their own, one at a time,
in the order of the plan. An op waits for what it reads to arrive, and a tensor that leaves is held until its copy is
whole: so bytes on their way are neither used nor written, and count in memory.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remint.errors import BudgetError
from remint.graph import Tier
from remint.offload import Offload, sized
from remint.units import format_bytes

PAGE = 4096
SAMPLE_BYTES = 4 << 20  # to measure the bandwidth


class _Number(ctypes.c_int64 * 1):  # type: ignore[misc]
    """The memory of a ticket: an object that can be watched."""


@dataclass
class _Copy:
    """What a tensor was, and where its bytes are."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    nbytes: int
    source: torch.Tensor | None  # until it was waited for: the thread of transfers frees no tensor
    place: int = -1  # in the file; -1: it is not there yet, or could not be written
    written: Future[str] | None = None


@dataclass
class Arriving:
    """A tensor that is being fetched."""

    tensor: torch.Tensor | None  # until it was waited for
    ends: Future[str] | None = None


class TierCopies:
    """The copies of one compiled model, in a file without a name."""

    def __init__(self, offload: Offload) -> None:
        self._capacity = sized(offload)
        self._folder = offload.folder()
        self._file = _open_without_name(self._folder)
        self._process = os.getpid()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="remint-transfers")
        self._numbers = itertools.count()
        self._copies: dict[int, _Copy] = {}
        self._gone: deque[int] = deque()  # whose tickets are gone; freed by the thread, after the transfers so far
        self._places = _Places()
        self._used = 0
        self.num_offloads = self.num_fetches = 0
        self.offloaded_bytes = self.fetched_bytes = 0
        weakref.finalize(self, os.close, self._file)
        self.tier = Tier(
            bytes=self._capacity, bandwidth=float(offload.bandwidth or self._measured()), latency=offload.latency
        )

    @property
    def used_bytes(self) -> int:
        """What copies take now."""
        self._thread.submit(self._free_gone).result()
        return self._used

    def offload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin to copy the storage of a tensor to the tier; return the ticket."""
        self._check_process()
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        offset = int(tensor.storage_offset())
        copy = _Copy(tensor.size(), tensor.stride(), offset, tensor.dtype, nbytes, tensor)
        number = next(self._numbers)
        memory = _Number(number)
        weakref.finalize(memory, _note_gone, self._gone, number, copy).atexit = False
        self._copies[number] = copy
        copy.written = self._thread.submit(self._write, copy)
        self.num_offloads += 1
        self.offloaded_bytes += nbytes
        return torch.frombuffer(memory, dtype=torch.int64)

    def written(self, ticket: torch.Tensor) -> None:
        """Wait until the copy is whole. Raises a `BudgetError` if the tier took no more."""
        copy = self._copies[int(ticket)]
        assert copy.written is not None
        problem = copy.written.result()
        copy.source = None
        if problem:
            raise BudgetError(problem)

    def fetch(self, ticket: torch.Tensor) -> Arriving:
        """Begin to copy a tensor back."""
        self._check_process()
        copy = self._copies[int(ticket)]
        tensor = torch.empty(0, dtype=copy.dtype)
        storage = torch.empty(copy.nbytes, dtype=torch.uint8).untyped_storage()
        tensor.set_(storage, copy.offset, copy.size, copy.stride)
        self.num_fetches += 1
        self.fetched_bytes += copy.nbytes
        arriving = Arriving(tensor)
        # The job holds the ticket: the copy stays until it was read.
        arriving.ends = self._thread.submit(self._read, copy, arriving, ticket)
        return arriving

    # What goes wrong is returned as a text. An error would keep the frames that it passes, and so the tickets in them.

    def _write(self, copy: _Copy) -> str:
        self._free_gone()
        source = copy.source
        if source is None:
            return ""  # its ticket is gone
        size = _pages(copy.nbytes)
        if self._used + size > self._capacity:
            return (
                f"the tier of {format_bytes(self._capacity)} cannot take {format_bytes(copy.nbytes)} more: "
                f"{format_bytes(self._used)} are in it. The plan of one step fits; steps that overlap need more: "
                "give offload= more bytes"
            )
        self._used += size
        copy.place = self._places.take(copy.nbytes)
        try:
            self._move(os.pwritev, copy.place, source)
        except OSError as error:
            self._give_back(copy)
            return (
                f"the offload file in {self._folder} took no more ({error.strerror}): "
                f"{format_bytes(self._used)} are in it. The step ends here, and no parameter was changed by it. Free "
                "space on that disk, name another folder with remint.Offload(path=...), or use a larger budget"
            )
        return ""

    def _read(self, copy: _Copy, arriving: Arriving, _: torch.Tensor) -> str:
        assert copy.written is not None
        if problem := copy.written.result():  # it ran before
            return problem
        try:
            self._move(os.preadv, copy.place, arriving.tensor)
        except OSError as error:
            return (
                f"{copy.nbytes} bytes of an offloaded tensor cannot be read from the file in {self._folder}: "
                f"{error.strerror or error}. The step ends here: look at the disk"
            )
        return ""

    def _move(self, call: Callable[[int, list[Any], int], int], place: int, tensor: torch.Tensor | None) -> None:
        assert tensor is not None
        storage = tensor.untyped_storage()
        del tensor
        if storage.nbytes() == 0:
            return
        view = memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")
        done = 0
        while done < len(view):
            count = call(self._file, [view[done:]], place + done)
            if count <= 0:
                raise OSError(0, "the file is shorter than it was")
            done += count

    def _free_gone(self) -> None:
        while self._gone:
            copy = self._copies.pop(self._gone.popleft())
            if copy.place >= 0:
                self._give_back(copy)

    def _give_back(self, copy: _Copy) -> None:
        self._places.give_back(copy.place, copy.nbytes)
        self._used -= _pages(copy.nbytes)
        copy.place = -1

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "remint: this process was forked from the one that compiled the model, and shares its offload file. "
                "Compile the model after the fork"
            )

    def _measured(self) -> float:
        """Bytes per second that a copy there and back runs at."""
        sample = torch.ones(SAMPLE_BYTES, dtype=torch.uint8)
        ticket = self.offload(sample)
        self.written(ticket)
        arrived(self.fetch(ticket))
        began = time.perf_counter()
        again = self.offload(sample)
        self.written(again)
        arrived(self.fetch(again))
        took = time.perf_counter() - began
        self.num_offloads = self.num_fetches = self.offloaded_bytes = self.fetched_bytes = 0
        return 2 * SAMPLE_BYTES / max(took, 1e-9)


def arrived(arriving: Arriving) -> torch.Tensor:
    """Wait until a tensor is there. Raises a `RuntimeError` if it cannot be read."""
    assert arriving.ends is not None
    problem = arriving.ends.result()
    tensor, arriving.tensor = arriving.tensor, None
    assert tensor is not None
    if problem:
        raise RuntimeError(f"remint: {problem}")
    return tensor


def _note_gone(gone: deque[int], number: int, copy: _Copy) -> None:
    copy.source = None
    gone.append(number)


class _Places:
    """Free places in a file, of whole pages. Neighbours are joined."""

    def __init__(self) -> None:
        self._free: dict[int, int] = {}
        self._end = 0

    def take(self, nbytes: int) -> int:
        size = _pages(nbytes)
        for place in sorted(self._free):
            if self._free[place] >= size:
                rest = self._free.pop(place) - size
                if rest:
                    self._free[place + size] = rest
                return place
        self._end += size
        return self._end - size

    def give_back(self, place: int, nbytes: int) -> None:
        size = _pages(nbytes)
        size += self._free.pop(place + size, 0)
        before = next((start for start, length in self._free.items() if start + length == place), None)
        if before is None:
            self._free[place] = size
        else:
            self._free[before] += size


def _pages(nbytes: int) -> int:
    return max(PAGE, -(-nbytes // PAGE) * PAGE)


def _open_without_name(folder: Path) -> int:
    """Open a file that the system removes with the process, however that ends."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # not all file systems can do that
        file, name = tempfile.mkstemp(prefix="remint-offload-", dir=folder)
        os.unlink(name)
        return file
