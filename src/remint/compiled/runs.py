"""The forwards of one step, as they were observed, and the gradients that they leave to each other's backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from remint.graph import Plan

if TYPE_CHECKING:
    from remint.compiled.planned_graph import PlannedGraph


@dataclass(eq=False)
class Run:
    """One forward of a graph, with the plan it went by. The same graph can run several times in a step."""

    graph: PlannedGraph
    plan: Plan
    saved_bytes: int
    inputs: tuple[int, ...] = ()  # per input the address of its storage, 0 if it is no tensor
    backward_began: bool = False
    # A reference keeps the address of a storage from being used again, but not its bytes.
    returned: list[StorageWeakRef] = field(default_factory=list)
    _sign_of_life: StorageWeakRef | None = None

    def note(self, inputs: tuple[int, ...], returned: Sequence[Any], saved: Sequence[Any]) -> None:
        """Note which storages the forward took, returned and saved."""
        self.inputs = inputs
        self.returned = [StorageWeakRef(t.untyped_storage()) for t in _tensors(returned)]  # type: ignore[no-untyped-call]
        # A graph can save nothing but its inputs; then what it returns tells how long its saved values live.
        for tensor in (*_tensors(saved), *_tensors(returned)):
            if tensor.untyped_storage()._cdata not in self.inputs:
                self._sign_of_life = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
                return

    @property
    def alive(self) -> bool:
        """Whether the run holds saved values for a backward that has not begun."""
        return not (self.backward_began or self._sign_of_life is None or self._sign_of_life.expired())  # type: ignore[no-untyped-call]


def gradients_found(runs: Sequence[Run]) -> list[int]:
    """Return per run the bytes of gradients that other runs have made when its backward begins.

    Backwards run in the opposite order, as in one call of `backward()`. The gradient of a parameter stays; if several
    runs make one for the same parameter, the first stays and the others are added to it. The gradient of an input that
    an earlier run returned waits for the backward of that run, which takes it over as its tangent.
    """
    found = [0] * len(runs)
    accumulated: set[int] = set()
    for place in reversed(range(len(runs))):
        until: dict[str, tuple[int, int]] = {}  # per gradient its bytes, and the run whose backward takes it over
        for number, address in enumerate(runs[place].inputs):
            receiver = place
            if number in runs[place].graph.parameters:
                receiver = place if address in accumulated else -1
                accumulated.add(address)
            elif address:
                receiver = _maker(runs[:place], address, default=place)
            for name, nbytes in runs[place].graph.gradients_of(number).items():
                until[name] = nbytes, min(receiver, until[name][1] if name in until else place)
        for nbytes, receiver in until.values():
            for other in range(receiver + 1, place):
                found[other] += nbytes
    return found


def constants_of(runs: Sequence[Run]) -> int:
    """Return the bytes of parameters, buffers and inputs that count, each storage once."""
    counted: dict[Any, int] = {}
    made: set[int] = set()
    for run in runs:
        for place, constants in enumerate(run.graph.constants):
            address = run.inputs[place] if place < len(run.inputs) else 0
            if address not in made:
                # What has no address is a constant of the graph itself.
                counted[address or (run.graph, place)] = sum(constants.values())
        made.update(reference.cdata for reference in run.returned)
    return sum(counted.values())


def _maker(runs: Sequence[Run], address: int, *, default: int) -> int:
    for place in reversed(range(len(runs))):
        if any(reference.cdata == address for reference in runs[place].returned):
            return place
    return default


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def addresses_of(values: Sequence[Any]) -> tuple[int, ...]:
    """Return per value the address of its storage, 0 if it is no tensor."""
    return tuple(value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0 for value in values)
