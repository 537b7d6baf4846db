"""From what was seen of some steps to the answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from remint.advice.plans import with_plans
from remint.advice.tier import Tier
from remint.advice.watch import Watch
from remint.results.advice import Advice, Choice
from remint.results.holders import Holder, peak_holders
from remint.simulator.budget_choices import MAX_SLOWDOWN, MeasuredSteps, choice, least_choice
from remint.simulator.simulate import simulate
from remint.simulator.tier_choices import TierSteps
from remint.trace import Trace
from remint.units import budget_text, format_bytes, parse_budget

PERCENTS = (90, 80, 70, 60, 50, 40, 30, 20)


@dataclass
class Question:
    """What somebody wants to know of a step."""

    subject: str
    is_script: bool
    fits: int | str | None = None
    accepted: float = 1.1
    try_it: bool = True
    plan: bool = True
    offload: Tier | None = None
    answer: Advice | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.accepted >= 1:
            raise ValueError(f"accept is a slowdown, 1 or more, such as 1.25, not {self.accepted}")
        if self.fits is not None and not str(self.fits).endswith("%"):
            parse_budget(self.fits)

    def try_budget(self, watch: Watch) -> int | None:
        """Answer, and return the budget to try: for the rest of the program, which has made its tensors before."""
        self.answer = self.of(watch)
        best = self.answer.used
        # What the program has made before would not be below the trial's budget, where a tier could have it.
        if best is None or not self.try_it or best.uses_tier:
            return None
        return best.budget_bytes - self._beside(watch.live)

    def with_trial(self, watch: Watch) -> Advice:
        """Return the answer, with what came of the trial."""
        if self.answer is None:
            self.answer = self.of(watch)
        if watch.trial is None:
            return self.answer
        whole = watch.trial.budget_bytes + self._beside(watch.live)
        return replace(self.answer, trial=replace(watch.trial, budget_bytes=whole))

    def _counts(self, holder: Holder) -> bool:
        # A script is inside from its first tensor on. A loop in a budget has its model outside, but the state of its
        # optimizer is made by the first step.
        return self.is_script or holder.kind == "optimizer state"

    def _beside(self, live: tuple[Holder, ...]) -> int:
        return sum(holder.nbytes for holder in live if self._counts(holder))

    def of(self, watch: Watch) -> Advice:
        """Simulate the recorded steps under many budgets."""
        steps = MeasuredSteps(
            trace=watch.trace,
            num_steps=watch.num_steps,
            plain_seconds=watch.plain_seconds,
            recorded_seconds=watch.recorded_seconds,
            bookkeeping_seconds=watch.bookkeeping_seconds,
            beside_bytes=self._beside(watch.live),
        )
        counted = tuple(holder for holder in watch.live if self._counts(holder))
        holders = sorted((*counted, *trace_holders(watch.lined_trace)), key=lambda holder: -holder.nbytes)
        return answer(
            self,
            steps,
            holders=tuple(holders),
            outside=tuple(holder for holder in watch.live if not self._counts(holder)),
        )


def answer(
    question: Question,
    steps: MeasuredSteps,
    *,
    holders: tuple[Holder, ...],
    outside: tuple[Holder, ...],
    estimated: str = "",
) -> Advice:
    """Return the advice about some steps."""
    peak = steps.peak_bytes
    tier = question.offload
    with_tier = None if tier is None else TierSteps.of(steps, tier.measured, is_script=question.is_script)

    def choice_of(nbytes: int) -> Choice:
        found = choice(steps, nbytes)
        return found if with_tier is None else replace(found, offload=with_tier.slowdown(nbytes))

    lowest, reason = (steps.min_budget_bytes, _reason(steps)) if with_tier is None else with_tier.min_budget()
    choices = [choice_of(rounded(peak * percent // 100)) for percent in PERCENTS]
    least = least_choice(lowest, peak, choice_of)
    asked = None if question.fits is None else choice_of(parse_budget(question.fits, peak_bytes=peak))
    if question.plan:
        planned = with_plans(steps, [each for each in (*choices, least, asked) if each is not None])
        choices = [planned[each.budget_bytes] for each in choices]
        least, asked = (None if each is None else planned[each.budget_bytes] for each in (least, asked))
    works = [found for found in choices if found.best is not None and found.best <= MAX_SLOWDOWN]
    if least is not None:
        works.append(least)
    least = min(works, key=lambda found: found.budget_bytes, default=None)
    return Advice(
        subject=question.subject,
        is_script=question.is_script,
        step_seconds=steps.plain_seconds,
        peak_bytes=peak,
        holders=holders,
        outside=outside,
        min_budget_bytes=lowest,
        min_budget_reason=reason,
        least=least,
        choices=tuple(found for found in choices if found in works),
        recommended=_recommended([found for found in works if found.budget_bytes < peak], question.accepted),
        accepted=question.accepted,
        asked=asked,
        estimated=estimated,
        offload="" if tier is None else tier.text,
        bandwidth=None if tier is None else float(tier.measured.bandwidth or 0) or None,
    )


def trace_holders(trace: Trace) -> tuple[Holder, ...]:
    """Return what holds memory at the peak of a trace, without a budget."""
    run = simulate(trace, budget=2 * trace.peak_bytes + (1 << 20), policy="coop", memory="arena", blocks=True)
    assert run.blocks is not None
    return peak_holders(run.blocks)


def rounded(nbytes: int) -> int:
    """Return a budget of about this size that is short to write."""
    return parse_budget(budget_text(nbytes))


def _recommended(works: list[Choice], accepted: float) -> Choice | None:
    """Return the smallest budget in which a step is quick enough, beside plain steps or the quickest of these."""
    times = [found.best for found in works if found.best is not None]
    limit = accepted * max(1.0, min(times, default=1.0))
    quick = [found for found in works if found.best is not None and found.best <= limit]
    return min(quick, key=lambda found: found.budget_bytes, default=None)


def _reason(steps: MeasuredSteps) -> str:
    trace = steps.trace
    if steps.held_bytes > trace.min_budget_bytes:
        beside = f", and {format_bytes(steps.beside_bytes)} stay all the time" if steps.beside_bytes else ""
        return f"at the end of a step {format_bytes(steps.held_bytes)} are held, such as gradients{beside}"
    event = trace.min_budget_event
    name = trace.names[trace.name_ids[event]] if trace.num_events else "nothing"
    beside = f", beside {format_bytes(steps.beside_bytes)} that stay" if steps.beside_bytes else ""
    return f"{name} needs {format_bytes(trace.min_budget_bytes)} at once for its inputs and outputs{beside}"
