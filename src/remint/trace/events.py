"""What the events of a trace are, and what makes one legal.

- `constant`: a tensor that nothing can remake (a weight, an input);
- `call`: an op; each output has fresh bytes or shares the storage of an argument;
- `view`: a call all of whose outputs share an argument's storage;
- `mutate`: an op that writes some of its arguments in place. Each of these gets a new tensor, which the
  program uses from then on;
- `release`: the program let go of a tensor;
- `mark`: a named point, such as the start of the backward pass;
- `pin`: from here on a tensor cannot be made again, and not be moved either if its address is known;
- `materialize`: a tensor is read around all ops, and has to be there.

Recorded programs need more of these (see docs/traces.md): constants that are not in the budget's memory, outputs that
cannot be made again, arguments that are written as a side effect, or overwritten without being read.

Tensors are numbered from 0 in the order they are made. Each is born with one reference, which `release`
drops, at most once; after that it may not be an argument.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

CONSTANT, CALL, VIEW, MUTATE, RELEASE, MARK, PIN, FIX, MATERIALIZE = range(9)
KINDS = ("constant", "call", "view", "mutate", "release", "mark", "pin", "pin", "materialize")

# In place of the argument whose storage a tensor shares: it has bytes of its own, which ...
FRESH = -1  # its op can make again
ONCE = -2  # nothing can make again, though an op made them
KEPT = -3  # the same, and which are not known to be a tensor before an op takes them for an argument
ELSEWHERE = -4  # a constant's: they take nothing of the budget

# What an op does to an argument, beside what the aliases of its outputs say.
READS = 0
SIDE_EFFECT = 1  # writes it, and nothing that it makes depends on it
OVERWRITES = 2  # writes all of it, and reads nothing of it

Where: TypeAlias = Literal["arena", "kept", "elsewhere"]
WHERE: dict[str, int] = {"arena": FRESH, "kept": KEPT, "elsewhere": ELSEWHERE}

# One memory request of a running kernel: ("allocate", nbytes) is scratch, ("allocate", nbytes, i) becomes
# output i of the op, ("free", k) gives back the k-th allocation of this op, counted from 0.
Request: TypeAlias = tuple[str, int] | tuple[str, int, int]

Integers: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that nothing can remake."""

    output: int
    nbytes: int
    name: str
    where: str = "arena"
    """`arena`; `elsewhere`: in no budget's memory; `kept`: in the arena, and it is not known which tensor it is in
    before an op takes it for an argument, so that it cannot be moved."""


@dataclass(frozen=True, slots=True)
class Call:
    """An op: output i has `nbytes[i]` fresh bytes, or shares the storage of argument `aliases[i]`.

    The outputs `once` cannot be made again, nor can the outputs `kept`, which are not tensors yet.
    """

    name: str
    args: tuple[int, ...]
    outputs: tuple[int, ...]
    nbytes: tuple[int, ...]
    aliases: tuple[int, ...]
    seconds: float
    source: str | None = None
    requests: tuple[Request, ...] = ()
    once: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """An op all of whose outputs share the storage of an argument: output i that of argument `aliases[i]`."""

    name: str
    args: tuple[int, ...]
    outputs: tuple[int, ...]
    aliases: tuple[int, ...]
    seconds: float
    source: str | None = None
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class Mutate:
    """An op in place: output i is what argument `mutated[i]` became; its storage has `nbytes[i]` bytes.

    Outputs beyond those have fresh bytes. Arguments `overwritten` were not read, arguments `effects` were written as a
    side effect; `once` and `kept` are as in a call.
    """

    name: str
    args: tuple[int, ...]
    outputs: tuple[int, ...]
    nbytes: tuple[int, ...]
    mutated: tuple[int, ...]
    seconds: float
    source: str | None = None
    requests: tuple[Request, ...] = ()
    overwritten: tuple[int, ...] = ()
    effects: tuple[int, ...] = ()
    once: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """The program let go of a tensor."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A named point."""

    name: str


@dataclass(frozen=True, slots=True)
class Pin:
    """From here on a tensor cannot be made again; nor be moved, if it is `fixed`."""

    tensor: int
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Materialize:
    """A tensor is read around all ops, and has to be there."""

    tensor: int


Event: TypeAlias = Constant | Call | View | Mutate | Release | Mark | Pin | Materialize

# Checks. Each returns what it was given as plain Python numbers, or calls `fail`, which knows the event.

Fail: TypeAlias = Callable[[str], NoReturn]

MAX_INT64 = 2**63 - 1
# A cost up to here is the same number of nanoseconds again after it was written in seconds, as a double.
MAX_SECONDS = 2**51 / 1e9


def check_integer(fail: Fail, what: str, number: Any) -> int:
    """Return `number` if it is a whole number; a bool is not."""
    if type(number) is int:
        return number
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | np.integer):
        fail(f"{what} must be a whole number, not {number!r}")
    return operator.index(number)


def check_list(fail: Fail, what: str, items: Any) -> list[Any]:
    """Return the items of a list, tuple or array."""
    if type(items) is list:
        return items[:]
    if not isinstance(items, tuple | np.ndarray | range):
        fail(f"{what} must be a list, not {items!r}")
    return list(items)


def check_bytes(fail: Fail, nbytes: Any) -> int:
    """Return a number of bytes."""
    size = check_integer(fail, "bytes", nbytes)
    if not 0 <= size <= MAX_INT64:
        fail(f"bytes must be 0 or more, and fit 64 bits, not {size}")
    return size


def check_seconds(fail: Fail, seconds: Any) -> int:
    """Return the nanoseconds in `seconds`."""
    if type(seconds) is not float and (isinstance(seconds, bool) or not isinstance(seconds, float | int | np.number)):
        fail(f"seconds must be a number, not {seconds!r}")
    # Written so that NaN fails, too.
    if not 0 <= seconds <= MAX_SECONDS:
        fail(f"seconds must be 0 or more, and at most {MAX_SECONDS:.0f}, not {seconds!r}")
    return round(float(seconds) * 1e9)


def check_args(fail: Fail, args: Any, held: Sequence[int]) -> list[int]:
    """Return the arguments of an op; `held[t]` is 0 for each tensor that was released, of all so far."""
    checked = check_list(fail, "args", args)
    for index, tensor in enumerate(checked):
        if type(tensor) is not int:
            checked[index] = tensor = check_integer(fail, f"argument {index}", tensor)
        if not 0 <= tensor < len(held):
            so_far = f"the tensors so far are 0 to {len(held) - 1}" if held else "there are no tensors so far"
            fail(f"argument {index} is tensor {tensor}, which does not exist: {so_far}")
        if not held[tensor]:
            fail(f"argument {index} is tensor {tensor}, which was released before")
    return checked


def check_aliases(fail: Fail, aliases: Any, sizes: list[int], num_args: int) -> list[int]:
    """Return, per output of a call, the argument whose storage it shares, or -1."""
    checked = [check_integer(fail, "an alias", alias) for alias in check_list(fail, "aliases", aliases)]
    if len(checked) != len(sizes):
        fail(f"there are {len(checked)} aliases for {len(sizes)} outputs: give one each, -1 for fresh bytes")
    for output, (alias, size) in enumerate(zip(checked, sizes, strict=True)):
        if not -1 <= alias < num_args:
            fail(f"output {output} shares the storage of argument {alias}, but there are {num_args}, from 0")
        if alias >= 0 and size:
            fail(
                f"output {output} shares the storage of argument {alias}, and has {size} bytes of its own: "
                "give it 0 bytes, or alias -1"
            )
    return checked


def check_places(fail: Fail, what: str, places: Any, count: int) -> list[int]:
    """Return some of the indices 0 to `count` - 1, each at most once."""
    checked = [check_integer(fail, "an index", place) for place in check_list(fail, what, places)]
    if len(set(checked)) != len(checked) or not all(0 <= place < count for place in checked):
        fail(f"{what} is {checked}: name some of 0 to {count - 1}, each once")
    return checked


def mark_outputs(fail: Fail, aliases: list[int], once: Any, kept: Any) -> list[int]:
    """Return `aliases` with the outputs `once` and `kept` marked as such."""
    marked = aliases[:]
    for what, places, mark in (("once", once, ONCE), ("kept", kept, KEPT)):
        for place in check_places(fail, what, places, len(aliases)):
            if marked[place] != FRESH:
                fail(f"{what} has output {place}, which has no fresh bytes, or is named twice")
            marked[place] = mark
    num_kept = marked.count(KEPT)
    if KEPT in marked[: len(marked) - num_kept]:
        fail(f"kept is {kept}: these outputs come last")
    return marked


def check_mutated(fail: Fail, mutated: Any, num_args: int, *, may_be_none: bool = False) -> list[int]:
    """Return the indices of the arguments that an op writes in place."""
    checked = [check_integer(fail, "an index", index) for index in check_list(fail, "mutated", mutated)]
    for index in checked:
        if not 0 <= index < num_args:
            fail(f"mutated has argument {index}, but there are {num_args}, from 0")
    if not (checked or may_be_none) or len(set(checked)) != len(checked):
        fail(f"mutated is {checked}: name each argument that is written once, and at least one")
    return checked


def check_requests(fail: Fail, requests: Any, sizes: list[int], aliases: list[int]) -> list[tuple[int, int]]:
    """Return the memory requests of an op as the columns have them: (bytes, output) each."""
    checked: list[tuple[int, int]] = []
    allocations: list[int] = []  # the output that each becomes, -1 for scratch, -2 once it is freed
    for request in check_list(fail, "requests", requests):
        match check_list(fail, "a request", request):
            case ["allocate", nbytes]:
                checked.append((check_bytes(fail, nbytes), -1))
                allocations.append(-1)
            case ["allocate", nbytes, number]:
                size, output = check_bytes(fail, nbytes), check_integer(fail, "an output", number)
                if not 0 <= output < len(sizes) or aliases[output] >= 0 or output in allocations:
                    fail(f"{request!r}: each output with fresh bytes is allocated once, and no other")
                if size < sizes[output]:
                    fail(f"{request!r}: output {output} needs {sizes[output]} bytes")
                checked.append((size, output))
                allocations.append(output)
            case ["free", number]:
                index = check_integer(fail, "an allocation", number)
                if not 0 <= index < len(allocations) or allocations[index] != -1:
                    fail(f"{request!r}: only scratch that was allocated before can be freed, and once")
                checked.append((-index - 1, -1))
                allocations[index] = -2
            case _:
                fail(
                    f'{request!r} is not a request: write ("allocate", bytes), ("allocate", bytes, output) '
                    'or ("free", allocation)'
                )
    for output, alias in enumerate(aliases):
        if checked and alias < 0 and output not in allocations:
            fail(f"the requests never allocate output {output}: give all fresh outputs, or no requests")
    return checked
