"""The facts of a trace, worked out a second time: slowly, from its events alone, without the core."""

from __future__ import annotations

from dataclasses import dataclass

from remint.trace import Trace
from remint.trace.events import Call, Constant, Mutate, Release, View


@dataclass(frozen=True)
class Facts:
    peak_bytes: int
    min_budget_bytes: int
    constant_bytes: int


def trace_facts(trace: Trace) -> Facts:
    return Facts(_peak_bytes(trace), _min_budget_bytes(trace), _constant_bytes(trace))


def _constant_bytes(trace: Trace) -> int:
    return sum(event.nbytes for event in trace.events() if isinstance(event, Constant))


def _peak_bytes(trace: Trace) -> int:
    """A storage lives until its last tensor is released; an op in place makes a fresh one."""
    storages: list[int] = []  # per tensor: the tensor that was first in its storage
    tensors: dict[int, set[int]] = {}  # per storage: its tensors that are not released
    nbytes: dict[int, int] = {}
    peak = 0

    def add(tensor: int, size: int, storage: int) -> None:
        assert tensor == len(storages)
        storages.append(storage)
        tensors.setdefault(storage, set()).add(tensor)
        nbytes.setdefault(storage, size)

    for event in trace.events():
        match event:
            case Constant():
                add(event.output, event.nbytes, event.output)
            case Call():
                for tensor, size, alias in zip(event.outputs, event.nbytes, event.aliases, strict=True):
                    add(tensor, size, storages[event.args[alias]] if alias >= 0 else tensor)
            case View():
                for tensor, alias in zip(event.outputs, event.aliases, strict=True):
                    add(tensor, 0, storages[event.args[alias]])
            case Mutate():
                for tensor, index in zip(event.outputs, event.mutated, strict=True):
                    add(tensor, nbytes[storages[event.args[index]]], tensor)
            case Release():
                storage = storages[event.tensor]
                tensors[storage].remove(event.tensor)
        # Sizes are kept for views of what is gone; only storages with tensors are live.
        dead = [storage for storage, left in tensors.items() if not left]
        for storage in dead:
            del tensors[storage]
        peak = max(peak, sum(nbytes[storage] for storage in tensors))
    return peak


def _min_budget_bytes(trace: Trace) -> int:
    """What is needed at once by the hungriest op; an op in place writes the storage it reads.

    A constant counts for as long as the program holds any tensor of its storage.
    """
    storages: list[int] = []
    tensors: dict[int, set[int]] = {}  # per storage: its tensors that are not released
    nbytes: dict[int, int] = {}
    constants: set[int] = set()
    most = 0

    def add(tensor: int, size: int, alias: int, args: tuple[int, ...]) -> None:
        assert tensor == len(storages)
        storages.append(storages[args[alias]] if alias >= 0 else tensor)
        tensors.setdefault(storages[tensor], set()).add(tensor)
        nbytes.setdefault(storages[tensor], size)

    for event in trace.events():
        needed: set[int] = set()
        match event:
            case Constant():
                add(event.output, event.nbytes, -1, ())
                constants.add(event.output)
            case Call():
                for tensor, size, alias in zip(event.outputs, event.nbytes, event.aliases, strict=True):
                    add(tensor, size, alias, event.args)
                needed = {storages[tensor] for tensor in event.args + event.outputs}
            case View():
                for tensor, alias in zip(event.outputs, event.aliases, strict=True):
                    add(tensor, 0, alias, event.args)
                needed = {storages[tensor] for tensor in event.args}
            case Mutate():
                for tensor, size, index in zip(event.outputs, event.nbytes, event.mutated, strict=True):
                    add(tensor, size, index, event.args)
                needed = {storages[tensor] for tensor in event.args}
            case Release():
                tensors[storages[event.tensor]].remove(event.tensor)
        held_constants = {storage for storage in constants if tensors[storage]}
        most = max(most, sum(nbytes[storage] for storage in held_constants | needed))
    return most
