"""Plans a step of a running program, in a process of its own: `python -m remint.planners.step_planning`.

The question comes on standard input and the answer goes to standard output, as bytes (csrc/learning/plan_exchange.h is
the other side). The process is nice to the program, ends when the program has ended, and never imports torch.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from remint import _core
from remint.errors import BudgetError
from remint.file_cache import FileCache, user_cache_folder
from remint.graph import Plan
from remint.graph.step_model import StepModel, step_model
from remint.graph.steps import Compute
from remint.planners.planning import plan
from remint.trace import Trace
from remint.trace.events import CALL, MUTATE
from remint.version import __version__

QUESTION, ANSWER = b"remint step 1\n", b"remint plan 1\n"
NICENESS = 10
# Raise it when plans of the same step become better, or mean something else.
VERSION = 2
MAX_CACHE_BYTES = 64 << 20
# Of a question's time: about a quarter of it is spent on what the planners start from.
SEARCH_EVENTS_PER_SECOND = 10_000
# Seconds of CPU time beyond those for planning: to start, and for one step of a solver too many.
SPARE_SECONDS = 30

Actions = tuple[list[tuple[bool, int]], list[int]]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A step, and the memory and the CPU time that there are for it."""

    trace: Trace
    budget: int
    alignment: int
    seconds: float
    step_hash: int
    """Of what the step does: operators, types and sizes."""


def main() -> None:
    """Answer one question."""
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    os.nice(NICENESS)
    question = read_question(sys.stdin.buffer.read())
    _limit_cpu(question.seconds + SPARE_SECONDS)
    actions = answer(question, FileCache(user_cache_folder() / "plans", max_bytes=MAX_CACHE_BYTES))
    if actions is not None:
        sys.stdout.buffer.write(write_answer(actions))
        sys.stdout.buffer.flush()
    # Solvers' processes and threads have nothing more to say.
    os._exit(0)


def answer(question: Question, cache: FileCache) -> Actions | None:
    """Return the actions of the cheapest plan that was found, now or in a run before; None if there is none."""
    name = _file_name(question)
    kept_seconds, kept = _read_kept(question, cache.read(name))
    if kept is not None and kept_seconds >= question.seconds:
        return kept
    model = step_model(question.trace, alignment=question.alignment)
    hint = _clairvoyant(question, model)
    try:
        found = plan(model.graph, question.budget, "auto", question.seconds, hint=hint)
    except BudgetError:
        return kept
    best = min((actions_of(model, found), kept), key=lambda actions: _rematerialized(question, actions))
    if best is not None:
        cache.write(name, np.float64(question.seconds).tobytes() + write_answer(best))
    return best


def _rematerialized(question: Question, actions: Actions | None) -> float:
    """Return the nanoseconds that a plan loses; infinite if it is none of this step."""
    if actions is None:
        return math.inf
    simulated = _core.simulate_step(
        question.trace, budget=question.budget, alignment=question.alignment, actions=actions
    )
    return math.inf if simulated is None else simulated["rematerialized_ns"]


def _file_name(question: Question) -> str:
    """Return the name of a plan's file: of all that the plan depends on but the costs, which differ a little."""
    trace = question.trace
    text = hashlib.sha256(
        f"{VERSION} {__version__} {question.budget} {question.alignment} {question.step_hash}".encode()
    )
    for column in (
        trace.kinds,
        trace.args,
        trace.effects,
        trace.nbytes,
        trace.aliases,
        trace.request_bytes,
        trace.held,
    ):
        text.update(column.tobytes())
    return f"{text.hexdigest()[:32]}.plan"


def _read_kept(question: Question, content: bytes | None) -> tuple[float, Actions | None]:
    """Return the time that was spent on a plan, and the plan; None if the file is damaged or of another step."""
    try:
        seconds = float(np.frombuffer(content or b"", np.float64, 1)[0])
        actions = read_answer((content or b"")[8:])
    except (ValueError, IndexError):
        return 0.0, None
    return (0.0, None) if math.isinf(_rematerialized(question, actions)) else (seconds, actions)


def _clairvoyant(question: Question, model: StepModel) -> Plan | None:
    """Return what the policy does that knows the future, as a plan to start from."""
    simulated = _core.simulate_step(
        question.trace,
        budget=question.budget,
        alignment=question.alignment,
        search_events=round(SEARCH_EVENTS_PER_SECOND * question.seconds),
    )
    if simulated is None:
        return None
    try:
        return Plan.from_sequence(model.graph, sequence_of(question.trace, model, simulated["decisions"]))
    except ValueError:
        return None


def sequence_of(trace: Trace, model: StepModel, decisions: str) -> list[int]:
    """Return the ops of the graph in the order in which the engine ran them."""
    is_op = (trace.kinds >= CALL) & (trace.kinds <= MUTATE)
    number_of_event = np.cumsum(is_op) - 1
    event_of_tensor = np.repeat(np.arange(trace.num_events), np.diff(trace.out_offsets))
    place = {number: index for index, number in enumerate(model.numbers) if number is not None}
    sequence: list[int] = []
    frontier = 0
    for decision in decisions.split(";")[:-1]:
        if decision[0] not in "CR":
            continue
        index = place.get(int(number_of_event[event_of_tensor[int(decision[1:])]]))
        if index is None:
            continue
        if decision[0] == "C":
            sequence += range(frontier, index + 1)
            frontier = max(frontier, index + 1)
        elif model.graph.ops[index].outputs:
            sequence.append(index)
    return [*sequence, *range(frontier, len(model.graph.ops))]


def actions_of(model: StepModel, found: Plan) -> Actions:
    """Return what a plan does between the ops of the trace.

    Per action, whether it makes a value resident, or else evicts it, and the number of the tensor among those that ops
    make. Per op of the trace, and one more, how many actions came before it when the op before it had run.
    """
    graph = model.graph
    each: list[tuple[bool, int]] = []
    first = [0] * (model.num_ops + 1)
    ran = [False] * len(graph.ops)
    resident: set[str] = set()
    freed_after = _freed_at_once(found)
    freed_at: dict[str, int] = {}
    for position, step in enumerate(found.steps):
        if not isinstance(step, Compute):
            resident.discard(step.value)
            freed_at[step.value] = position
            if step.value in model.tensors:
                each.append((False, model.tensors[step.value] - model.num_constants))
            continue
        op = graph.ops[step.op]
        number = model.numbers[step.op]
        if not ran[step.op]:
            ran[step.op] = True
            if number is not None:
                first[number + 1] = len(each)
        else:
            missing = [value for value in op.outputs if value in model.tensors and value not in resident]
            if missing:
                # The op makes all of its outputs. One that is wanted stands for it; of these, one that has been gone
                # for long: the engine evicts as late as the next request for memory, and makes what is not there.
                value = min(missing, key=lambda value: (value in freed_after[position], freed_at.get(value, -1)))
                each.append((True, model.tensors[value] - model.num_constants))
        resident.difference_update(op.consumes.values())
        resident.update(op.outputs)
    # Ops that are not in the graph have no actions. What comes after the last op is left to the next step.
    first = list(itertools.accumulate(first, max))
    return each[: first[-1]], first


def _freed_at_once(found: Plan) -> dict[int, set[str]]:
    """Return, per position of a run, what is freed right after it."""
    freed: dict[int, set[str]] = {}
    last: set[str] = set()
    for position, step in enumerate(found.steps):
        if isinstance(step, Compute):
            last = freed[position] = set()
        else:
            last.add(step.value)
    return freed


def read_question(data: bytes) -> Question:
    """Return the question that was written by the program."""
    if not data.startswith(QUESTION):
        raise ValueError("this is no question of this version of remint")
    offset = len(QUESTION)

    def column(dtype: type[np.integer[Any]], count: int) -> npt.NDArray[Any]:
        nonlocal offset
        found: npt.NDArray[Any] = np.frombuffer(data, dtype, count, offset).copy()
        offset += found.nbytes
        return found

    budget, alignment, milliseconds, step_hash, events, args, tensors, requests, held = map(int, column(np.int64, 9))
    columns = {
        "kinds": column(np.uint8, events),
        "nanoseconds": column(np.int64, events),
        "arg_offsets": column(np.int64, events + 1),
        "args": column(np.int32, args),
        "effects": column(np.uint8, args),
        "out_offsets": column(np.int64, events + 1),
        "nbytes": column(np.int64, tensors),
        "aliases": column(np.int32, tensors),
        "request_offsets": column(np.int64, events + 1),
        "request_bytes": column(np.int64, requests),
        "request_outputs": column(np.int32, requests),
        "held": column(np.int32, held),
    }
    trace = Trace(
        **columns,
        name_ids=np.zeros(events, np.int32),
        names=("op",),
        source_ids=np.full(events, -1, np.int32),
        sources=(),
    )
    return Question(trace=trace, budget=budget, alignment=alignment, seconds=milliseconds / 1e3, step_hash=step_hash)


def write_question(question: Question) -> bytes:
    """Return the question as the program writes it."""
    trace = question.trace
    counts = (trace.num_events, len(trace.args), trace.num_tensors, len(trace.request_bytes), len(trace.held))
    numbers = (question.budget, question.alignment, round(question.seconds * 1e3), question.step_hash, *counts)
    columns = (
        trace.kinds,
        trace.nanoseconds,
        trace.arg_offsets,
        trace.args,
        trace.effects,
        trace.out_offsets,
        trace.nbytes,
        trace.aliases,
        trace.request_offsets,
        trace.request_bytes,
        trace.request_outputs,
        trace.held,
    )
    return b"".join([QUESTION, np.array(numbers, np.int64).tobytes(), *(column.tobytes() for column in columns)])


def write_answer(actions: Actions) -> bytes:
    """Return the answer for the program."""
    each, first = actions
    counts = np.array([len(first), len(each)], np.int64)
    numbers = np.array([*first, *(2 * number + makes for makes, number in each)], np.uint32)
    return ANSWER + counts.tobytes() + numbers.tobytes()


def read_answer(data: bytes) -> Actions:
    """Return the actions of an answer; raise `ValueError` if it is none."""
    if not data.startswith(ANSWER):
        raise ValueError("this is no plan of this version of remint")
    counts = np.frombuffer(data, np.int64, 2, len(ANSWER))
    numbers = np.frombuffer(data, np.uint32, -1, len(ANSWER) + 16).tolist()
    if (counts < 0).any() or int(counts.sum()) != len(numbers):
        raise ValueError("the plan is cut off")
    first = numbers[: int(counts[0])]
    return [(bool(number & 1), number >> 1) for number in numbers[len(first) :]], first


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _limit_cpu(seconds: float) -> None:
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (round(seconds), round(seconds) + 5))


if __name__ == "__main__":
    main()
