"""Random programs of two ranks: collectives, views, in-place ops, custom ops, writes of constants, and evictions.

Both ranks draw the same program from a seed. Values differ between the ranks, and so do evictions, which come from a
seed of the rank's own: they must not change what the ranks send each other. Programs are right without a budget, too:
nothing reads or writes what a collective in flight works on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import remint

COLUMNS = 16
Tensor = torch.Tensor


@dataclass
class Ranked:
    """The state of a program that runs on one rank. Tensors with the same `storage` number share memory."""

    rank: int
    rng: random.Random
    evicts: random.Random | None
    constants: list[Tensor]
    live: list[tuple[Tensor, int]] = field(default_factory=list)
    in_flight: dict[int, list[Any]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    num_storages: int = 0
    num_evicted: int = 0

    def add(self, tensor: Tensor, storage: int | None = None) -> int:
        if storage is None:
            storage = self.num_storages = self.num_storages + 1
        self.live.append((tensor, storage))
        return storage

    def usable(self, *, contiguous: bool = False) -> list[tuple[Tensor, int]]:
        return [(t, s) for t, s in self.live if s not in self.in_flight and (t.is_contiguous() or not contiguous)]

    def pick(self, *, like: Tensor | None = None, contiguous: bool = False) -> tuple[Tensor, int] | None:
        found = [(t, s) for t, s in self.usable(contiguous=contiguous) if like is None or t.shape == like.shape]
        return self.rng.choice(found) if found else None

    def evict_some(self) -> None:
        if self.evicts is None or self.evicts.random() < 0.4:
            return
        for tensor, _ in self.live:
            if self.evicts.random() < 0.5:
                self.num_evicted += remint.evict(tensor)


def _fresh(p: Ranked) -> None:
    p.add(p.rng.choice(p.constants) * p.rng.choice([0.5, 1, -0.75]))


def _elementwise(p: Ranked) -> None:
    t, _ = p.pick() or (p.constants[0], 0)
    p.add(p.rng.choice([torch.sin, torch.relu, lambda x: x * 0.5 + 1, lambda x: (x @ x.mT).tanh()[:, :COLUMNS]])(t))


def _binary(p: Ranked) -> None:
    if (first := p.pick()) is None or (second := p.pick(like=first[0])) is None:
        return
    p.add((first[0] + second[0]) * 0.5)


def _view(p: Ranked) -> None:
    if (picked := p.pick()) is None:
        return
    t, storage = picked
    views: list[Callable[[Tensor], Tensor]] = [lambda x: x.mT, lambda x: x[::2], lambda x: x.view_as(x)]
    if len(t) >= 4:
        views += [lambda x: x[: len(x) // 2], lambda x: x.chunk(2)[1]]
    p.add(p.rng.choice(views)(t), storage)


def _in_place(p: Ranked) -> None:
    if (picked := p.pick()) is None:
        return
    t, _ = picked
    kind = p.rng.randrange(5)
    if kind == 0:
        t.mul_(0.5)
    elif kind == 1:
        t.zero_()
    elif kind == 2:
        t[: len(t) // 2].sin_()
    elif kind == 3:
        torch.nn.functional.dropout(t, 0.5, inplace=True)
    elif (other := p.pick(like=t)) is not None:
        t.copy_(other[0].clone())


def _constant(p: Ranked) -> None:
    """Write a weight that recipes read."""
    constant = p.rng.choice(p.constants)
    if p.rng.random() < 0.4:
        dist.all_reduce(constant, op=dist.ReduceOp.MAX)
    else:
        constant.mul_(0.9).add_(0.1)


def _all_reduce(p: Ranked) -> None:
    if (picked := p.pick(contiguous=True)) is None:
        return
    op = p.rng.choice([dist.ReduceOp.SUM, dist.ReduceOp.MAX])
    _start(p, [picked[1]], dist.all_reduce(picked[0], op=op, async_op=True))


def _broadcast(p: Ranked) -> None:
    if (picked := p.pick(contiguous=True)) is not None:
        _start(p, [picked[1]], dist.broadcast(picked[0], src=p.rng.randrange(2), async_op=True))


def _all_gather(p: Ranked) -> None:
    if (picked := p.pick(contiguous=True)) is None:
        return
    t, storage = picked
    if p.rng.random() < 0.5:
        outputs = [torch.empty_like(t) for _ in range(2)]
        storages = [p.add(output) for output in outputs]
        work = dist.all_gather(outputs, t, async_op=True)
    else:
        output = t.new_empty(2 * t.shape[0], t.shape[1])
        storages = [p.add(output)]
        work = dist.all_gather_single(output, t, async_op=True)
    _start(p, [storage, *storages], work)


def _scatter(p: Ranked) -> None:
    found = [(t, s) for t, s in p.usable(contiguous=True) if len(t) >= 4 and len(t) % 2 == 0]
    if not found:
        return
    t, storage = p.rng.choice(found)
    if p.rng.random() < 0.5:
        output = t.new_empty(len(t) // 2, t.shape[1])
        work = dist.reduce_scatter_tensor(output, t, async_op=True)
    else:
        output = torch.empty_like(t)
        work = dist.all_to_all_single(output, t, async_op=True)
    _start(p, [storage, p.add(output)], work)


def _point_to_point(p: Ranked) -> None:
    if (picked := p.pick(contiguous=True)) is None:
        return
    t, storage = picked
    output, peer = torch.empty_like(t), 1 - p.rank
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, t, peer), dist.P2POp(dist.irecv, output, peer)])
    _start(p, [storage, p.add(output)], *works)


def _functional(p: Ranked) -> None:
    if (picked := p.pick(contiguous=True)) is None:
        return
    group = dist.group.WORLD
    kind = p.rng.randrange(3)
    if kind == 0:
        result = functional.all_reduce(picked[0], "sum", group)
    elif kind == 1:
        result = functional.all_gather_single(picked[0], 0, group)
    else:
        result = functional.broadcast(picked[0], 1, group)
    p.add(functional.wait_tensor(result) * 0.5)


@torch.library.custom_op("remint_ranks::mean_of_ranks", mutates_args=())
def _mean_of_ranks(x: Tensor) -> Tensor:
    y = x * 0.5
    dist.all_reduce(y)
    return y


def _custom(p: Ranked) -> None:
    if (picked := p.pick()) is not None:
        p.add(_mean_of_ranks(picked[0]))


def _start(p: Ranked, storages: list[int], *works: Any) -> None:
    if p.rng.random() < 0.5:
        for work in works:
            work.wait()
        return
    for storage in storages:
        p.in_flight[storage] = list(works)


def _wait(p: Ranked) -> None:
    if not p.in_flight:
        return
    works = p.in_flight[p.rng.choice(sorted(p.in_flight))]
    for work in works:
        work.wait()
    p.in_flight = {s: w for s, w in p.in_flight.items() if w != works}


def _drop(p: Ranked) -> None:
    found = [k for k, (_, s) in enumerate(p.live) if s not in p.in_flight]
    if found:
        del p.live[p.rng.choice(found)]


def _read(p: Ranked) -> None:
    if (picked := p.pick()) is not None:
        picked[0].sum().item() if p.rng.random() < 0.7 else picked[0].numpy()


_STEPS = {
    _fresh: 3, _elementwise: 4, _binary: 3, _view: 4, _in_place: 4, _constant: 1, _all_reduce: 3, _broadcast: 2,
    _all_gather: 2, _scatter: 2, _point_to_point: 1, _functional: 2, _custom: 1, _wait: 3, _drop: 3, _read: 1,
}  # fmt: skip


def run(seed: int, rank: int, *, evicts: bool, length: int = 40) -> Iterator[tuple[list[Tensor], Ranked]]:
    """Run the program of a seed, and give what it has at its end, once; going on drops it."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    constants = [torch.linspace(-1, 1 + rank, rows * COLUMNS).reshape(rows, COLUMNS).clone() for rows in (16, 16, 32)]
    p = Ranked(rank, rng, random.Random(2 * seed + rank) if evicts else None, constants)
    names = list(_STEPS)
    for step in rng.choices(names, [_STEPS[name] for name in names], k=length):
        p.log.append(step.__name__)
        step(p)
        p.evict_some()
        # What is left of many doublings would not fit anywhere.
        p.live = [(t, s) for t, s in p.live if t.numel() <= 256 * COLUMNS or s in p.in_flight]
    while p.in_flight:
        _wait(p)
    yield [*p.constants, *(tensor for tensor, _ in p.live)], p
