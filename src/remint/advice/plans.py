"""Plans of the step in budgets that are not open yet, as they would be made once they are.

A budget has its learned step planned by another process, so what it costs in the end is what that finds.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from remint import _core
from remint.planners.step_planning import Question, read_answer, write_question
from remint.results.advice import Choice
from remint.runtime.planning_command import planning_command
from remint.simulator.budget_choices import Actions, MeasuredSteps, planned_choice

# As in csrc/torch/session/learner.cpp: the CPU seconds of the first plan, and the ops of steps that are planned.
PLANNING_SECONDS = 4.0
MOST_OPS = 20_000
# A budget plans a step that loses one percent. Advice leaves out what a plan can hardly change.
WORTH_PLANNING = 1.1
# On the clock. A machine with more to do than it can keeps the figures of learned steps.
MOST_SECONDS = 60.0


def with_plans(steps: MeasuredSteps, choices: Sequence[Choice]) -> dict[int, Choice]:
    """Return the choices by their budgets, with what a plan makes of those that lose something."""
    found = {choice.budget_bytes: choice for choice in choices}
    limit = WORTH_PLANNING * steps.recorded_seconds / steps.plain_seconds
    slow = [
        choice
        for choice in found.values()
        if choice.greedy is not None and (choice.learned is None or choice.learned > limit)
    ]
    command = planning_command()
    if not slow or not command or steps.last is None or steps.last.num_ops > MOST_OPS:
        return found
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as jobs:
        plans = list(jobs.map(lambda choice: _plan(steps, choice.budget_bytes, command), slow))
    for choice, actions in zip(slow, plans, strict=True):
        if actions is not None:
            found[choice.budget_bytes] = planned_choice(steps, choice, actions)
    return found


def _plan(steps: MeasuredSteps, budget_bytes: int, command: list[str]) -> Actions | None:
    assert steps.last is not None
    question = Question(
        trace=steps.last,
        budget=steps.inside(budget_bytes),
        alignment=_core.CPU_ALIGNMENT,
        seconds=PLANNING_SECONDS,
        step_hash=0,
    )
    try:
        done = subprocess.run(
            command,
            input=write_question(question),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=MOST_SECONDS,
            check=False,
        )
        return read_answer(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
