"""The `run` of `with remint.budget(...) as run`: live while the budget is open, final after it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from remint.results.block_log import BlockLog, Label
from remint.results.learning import Learning, Phase, StepOutcome
from remint.results.run import Rematerialized, RematerializedOp, Run, Timeline
from remint.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from remint import _torch


class LiveRun:
    """The figures of a budget so far, with the names of `remint.Run`. `finished()` returns a `Run` of this moment."""

    def __init__(self, session: _torch.Session, *, policy: str) -> None:
        self._session = session
        self.policy = policy
        self.memory = "arena"
        self.deallocation = "eager"
        self.status = "ok"
        self.failure: str | None = None
        self.ranks_min_budget_bytes: int | None = None
        """On several ranks, after the first step: the largest `min_budget_bytes` of any rank, as of that step."""
        # The runs of each device, by name: of a budget of one device, this one.
        self.devices: dict[str, LiveRun] = {session.device: self}

    def _failed(self, error: BaseException | None) -> None:
        from remint.errors import BudgetError

        if isinstance(error, BudgetError):
            self.status, self.failure = "oom", str(error)

    def _figure(self, name: str) -> Any:
        figures: dict[str, Any] = {**self._session.figures()}
        return figures[name]

    @property
    def budget_bytes(self) -> int:
        """The budget."""
        return int(self._figure("budget_bytes"))

    @property
    def peak_bytes(self) -> int:
        """The most bytes of the arena that were ever in use at once, scratch included."""
        return int(self._figure("peak_bytes"))

    @property
    def min_budget_bytes(self) -> int:
        """A lower bound: no run of the same ops can do with less. It may take more.

        It is the most that was in use and could not be evicted while an op ran: pinned tensors, and the op's own.
        """
        return int(self._figure("min_budget_bytes"))

    def budget_for(self, max_slowdown: float) -> int | None:
        """Return the smallest budget in which a step would become at most so many times slower.

        An estimate, from a simulation of the step that was seen last. None if no step was seen while memory was short.
        """
        return self._session.budget_for(max_slowdown) or None

    @property
    def used_bytes(self) -> int:
        """The bytes of the arena that are in use now."""
        return int(self._figure("used_bytes"))

    @property
    def pinned_bytes(self) -> int:
        """Bytes that cannot be recomputed now. Without a tier they cannot leave memory either."""
        return int(self._figure("pinned_bytes"))

    @property
    def spilled_bytes(self) -> int:
        """With `overflow="spill"`: bytes that were taken from ordinary memory, all in all."""
        return int(self._figure("spilled_bytes"))

    @property
    def outside_bytes(self) -> int:
        """Memory of the accelerator that was taken since the budget was opened, and that is not in its arena, now.

        Numbers, pools of captured graphs, buffers of NCCL and other libraries. PyTorch's allocator counts it: what a
        library takes from the driver itself is not in it. 0 on the CPU.
        """
        return int(self._figure("outside_bytes"))

    @property
    def num_ops(self) -> int:
        """Ops of the program."""
        return int(self._figure("num_ops"))

    @property
    def num_evictions(self) -> int:
        """Times that bytes were dropped to free up space, or because somebody asked for it (`remint.evict`)."""
        return int(self._figure("num_evictions"))

    @property
    def num_frees(self) -> int:
        """Times that bytes were dropped because the program had released them."""
        return int(self._figure("num_frees"))

    @property
    def num_rematerializations(self) -> int:
        """Ops that were run again."""
        return int(self._figure("num_rematerializations"))

    @property
    def num_searches(self) -> int:
        """Times that the policy was asked for something to evict."""
        return int(self._figure("num_searches"))

    @property
    def num_scores(self) -> int:
        """Candidates that the policy scored in those searches."""
        return int(self._figure("num_scores"))

    @property
    def moved_bytes(self) -> int:
        """Bytes that were moved together because no free block was large enough."""
        return int(self._figure("moved_bytes"))

    @property
    def num_offloads(self) -> int:
        """Times that a tensor was copied to the tier below; see `remint.Offload`."""
        return int(self._figure("num_offloads"))

    @property
    def num_clean_offloads(self) -> int:
        """Times that a tensor left memory, and an unchanged copy was in the tier already."""
        return int(self._figure("num_clean_offloads"))

    @property
    def num_fetches(self) -> int:
        """Times that a tensor came back from the tier."""
        return int(self._figure("num_fetches"))

    @property
    def offloaded_bytes(self) -> int:
        """Bytes that were copied to the tier."""
        return int(self._figure("offloaded_bytes"))

    @property
    def fetched_bytes(self) -> int:
        """Bytes that came back."""
        return int(self._figure("fetched_bytes"))

    @property
    def offload_used_bytes(self) -> int:
        """Bytes that the tier holds now, copies of resident tensors included."""
        return int(self._figure("tier_used_bytes"))

    @property
    def offload_peak_bytes(self) -> int:
        """The most bytes that the tier ever held."""
        return int(self._figure("tier_peak_bytes"))

    @property
    def offload_bandwidth(self) -> float:
        """Bytes per second of the tier: as given, or as measured."""
        return float(self._figure("tier_bandwidth"))

    @property
    def transfer_seconds(self) -> float:
        """The time of transfers to the tier and back, by its bandwidth."""
        return float(self._figure("transfer_ns")) * 1e-9

    @property
    def transfer_wall_seconds(self) -> float:
        """Real time of these transfers."""
        return float(self._figure("transfer_wall_ns")) * 1e-9

    @property
    def num_storages(self) -> int:
        """Storages with a record now, those that only recipes need included."""
        return int(self._figure("num_storages"))

    @property
    def computed_seconds(self) -> float:
        """The time of the program's own ops."""
        return float(self._figure("computed_ns")) * 1e-9

    @property
    def rematerialized_seconds(self) -> float:
        """The time of rematerialization."""
        return float(self._figure("rematerialized_ns")) * 1e-9

    @property
    def search_seconds(self) -> float:
        """Real time spent on freeing up space: searches, evictions, moves."""
        return float(self._figure("search_ns")) * 1e-9

    @property
    def bookkeeping_seconds(self) -> float:
        """Real time spent around the program's ops, without rematerialization and searches."""
        return float(self._figure("bookkeeping_ns")) * 1e-9

    @property
    def collective_seconds(self) -> float:
        """Real time in collectives and in waits for them: mostly for other ranks. It is in no op's cost.

        DDP waits for its last buckets in C++, where remint cannot see it: that wait is not counted.
        """
        return float(self._figure("collective_ns")) * 1e-9

    @property
    def fragmentation(self) -> float:
        """Free bytes that could not serve the request at hand, over the budget; the mean over searches."""
        return float(self._figure("unusable_bytes")) / self.budget_bytes

    @property
    def slowdown(self) -> float:
        """The time with rematerialization and transfers over the time without."""
        computed = self.computed_seconds
        return 1.0 if computed == 0 else 1 + (self.rematerialized_seconds + self.transfer_seconds) / computed

    @property
    def timeline(self) -> Timeline | None:
        """Bytes in use after each op, if the budget was opened with `timeline=True`."""
        seconds, nbytes = self._session.timeline()
        return Timeline(seconds, nbytes) if len(seconds) else None

    def step(self) -> None:
        """Say that a step of the program ends here. From then on, only this and optimizers say where steps end."""
        self._session.step()

    @property
    def learning(self) -> Learning:
        """What was learned of the program's steps, and what came of it."""
        figures = self._session.learning()

        def phase(name: Literal["greedy", "learned", "planned"]) -> Phase:
            num_steps, *nanoseconds = figures[name]
            return Phase(num_steps, *(each * 1e-9 for each in nanoseconds))

        def outcome(name: Literal["predicted", "measured"]) -> StepOutcome | None:
            peak_bytes, times, *nanoseconds = figures[name]
            return StepOutcome(peak_bytes, times, *(each * 1e-9 for each in nanoseconds)) if peak_bytes else None

        return Learning(
            greedy=phase("greedy"),
            learned=phase("learned"),
            planned=phase("planned"),
            num_plans=figures["num_plans"],
            is_planning=figures["planning"],
            predicted=outcome("predicted"),
            measured=outcome("measured"),
            num_departures=figures["num_departures"],
            last_departure=figures["last_departure"],
            num_known_steps=figures["num_known_steps"],
            known_bytes=figures["known_bytes"],
            tier_use=figures["tier_use"],
            num_asleep_steps=figures["num_asleep_steps"],
            num_wakes=figures["num_wakes"],
            last_wake=figures["last_wake"],
        )

    def by_op(self) -> list[Rematerialized]:
        """Return which operators were recomputed, the most expensive first.

        With `source_lines=True` they are by line and module.

        Ops of the backward pass have the line and module of their forward op, or the name of autograd's node.
        """
        rows = [
            Rematerialized(name, times, ns * 1e-9, source or None, module or None, _why(needed_by))
            for name, source, module, times, ns, needed_by in self._session.by_operator()
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    @property
    def events(self) -> tuple[str, ...] | None:
        """Evictions and rematerializations, if the budget was opened with `events=True`; see `Run.events`."""
        return tuple(self._session.events().split(";")[:-1]) or None

    @property
    def blocks(self) -> BlockLog | None:
        """The log of every block of the arena, if the budget was opened with `blocks=True`."""
        columns, first_numbers, makers, marks = self._session.block_log()
        if not columns[1]:
            return None
        return BlockLog.labelled(
            columns, first_numbers.astype(np.int64), marks.__getitem__, lambda maker: Label(*makers[maker])
        )

    def pinned_by(self) -> list[tuple[str, int]]:
        """Return why bytes are pinned now, and how many, the most first."""
        return [(why, int(nbytes)) for why, nbytes in self._session.pinned_by()]

    def summary(self) -> dict[str, Any]:
        """Return the plain figures by name, for a table or a file."""
        names = [
            "status",
            "policy",
            "memory",
            "deallocation",
            "budget_bytes",
            "min_budget_bytes",
            "peak_bytes",
            "pinned_bytes",
            "spilled_bytes",
            "outside_bytes",
            "num_ops",
            "num_evictions",
            "num_frees",
            "num_rematerializations",
            "num_searches",
            "num_scores",
            "computed_seconds",
            "rematerialized_seconds",
            "search_seconds",
            "bookkeeping_seconds",
            "collective_seconds",
            "moved_bytes",
            "num_offloads",
            "num_clean_offloads",
            "num_fetches",
            "offloaded_bytes",
            "fetched_bytes",
            "transfer_seconds",
            "offload_peak_bytes",
            "fragmentation",
            "slowdown",
            "failure",
        ]
        return {name: getattr(self, name) for name in names}

    def finished(self) -> Run:
        """Return the figures of this moment as a `Run`, which can be compared with a simulated one."""
        return Run(
            status=self.status,  # type: ignore[arg-type]
            policy=self.policy,
            memory=self.memory,
            deallocation=self.deallocation,
            budget_bytes=self.budget_bytes,
            min_budget_bytes=self.min_budget_bytes,
            peak_bytes=self.peak_bytes,
            pinned_bytes=self.pinned_bytes,
            num_ops=self.num_ops,
            num_evictions=self.num_evictions,
            num_frees=self.num_frees,
            num_rematerializations=self.num_rematerializations,
            num_searches=self.num_searches,
            num_scores=self.num_scores,
            computed_seconds=self.computed_seconds,
            rematerialized_seconds=self.rematerialized_seconds,
            search_seconds=self.search_seconds,
            moved_bytes=self.moved_bytes,
            num_offloads=self.num_offloads,
            num_clean_offloads=self.num_clean_offloads,
            num_fetches=self.num_fetches,
            offloaded_bytes=self.offloaded_bytes,
            fetched_bytes=self.fetched_bytes,
            transfer_seconds=self.transfer_seconds,
            offload_peak_bytes=self.offload_peak_bytes,
            fragmentation=self.fragmentation,
            collective_seconds=self.collective_seconds,
            failure=self.failure,
            timeline=self.timeline,
            events=self.events,
            blocks=self.blocks,
            rematerialized=tuple(
                RematerializedOp(row.name, _where(row), row.times, row.seconds, row.why) for row in self.by_op()
            ),
            learning=self.learning,
        )

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page about the run: one HTML file.

        The memory over time needs `timeline=True`, the arena map `blocks=True`, lines and modules `source_lines=True`.
        """
        self.finished().report(path)

    def __str__(self) -> str:
        lines = [str(self.finished())]
        if self.spilled_bytes:
            lines.append(f"  spilled       {format_bytes(self.spilled_bytes)} to ordinary memory")
        if self.collective_seconds:
            lines.append(f"  collectives   {format_seconds(self.collective_seconds)}, waiting for other ranks included")
        if self.ranks_min_budget_bytes is not None:
            least = format_bytes(self.ranks_min_budget_bytes)
            lines.append(f"  ranks         need budgets of at least {least} each, after the first step")
        learning = self.learning
        if learning.saw_steps:
            lines.append(f"  steps         {learning}")
        for row in self.by_op()[:3]:
            where = _where(row)
            lines.append(
                f"  run again     {row.times:,}x {row.name} in {format_seconds(row.seconds)}{where and f', {where}'}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.finished()._repr_html_()

    def __repr__(self) -> str:
        peak, budget = format_bytes(self.peak_bytes), format_bytes(self.budget_bytes)
        return f"<LiveRun: {self.status}, {self.policy}, peak {peak} of {budget}, slowdown {self.slowdown:.3f}>"


def _where(row: Rematerialized) -> str:
    # The same form as in the labels of blocks and in recorded traces.
    return f"{row.module} at {row.source}" if row.module else row.source or ""


def _why(needed_by: list[tuple[str, int]]) -> str:
    often = sorted(needed_by, key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(name or "a read, or the end" for name, _ in often[:3])
