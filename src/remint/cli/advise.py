"""The command `remint advise`: which budget a script can have, and what it costs."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from remint.cli.output import EXAMPLES, add_json, check_outputs, reserve_stdout, write_json
from remint.cli.script import add_script, check_script, misplaced_options, run_script
from remint.results.advice import Advice

_OPTIONS = ["--fits", "--accept", "--steps", "--json", "--report", "--no-trial"]

_ADVISE = """\
examples:
  remint advise train.py --epochs 3
  remint advise --fits 24MiB --report advice.html train.py
  remint advise --accept 1.5 --json - -m package.train
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command, which imports torch only when it runs."""
    parser = commands.add_parser(
        "advise",
        help="say which budget a script can have, and what it costs",
        description="Run some steps of an unmodified script, and say what a step needs, what holds the memory, how "
        "much slower it is in each budget, and which one to use. A step ends where the optimizer steps. The script is "
        "stopped after about 20 steps.",
        epilog=_ADVISE,
        **EXAMPLES,
    )
    parser.add_argument("--fits", metavar="BUDGET", help='does it fit in this, such as "24GiB", and at what cost?')
    parser.add_argument(
        "--accept",
        type=float,
        default=1.1,
        metavar="TIMES",
        help="recommend the smallest budget in which a step takes at most so many times as long (default: 1.1)",
    )
    parser.add_argument("--steps", type=int, default=3, help="how many steps are timed and recorded (default: 3)")
    parser.add_argument("--no-trial", action="store_true", help="do not try the recommended budget")
    parser.add_argument(
        "--report", metavar="PATH", help="write the answer as a page, with the memory-time curve (.html)"
    )
    add_json(parser, "the answer")
    add_script(parser)
    parser.set_defaults(command=advise_command)


def advise_command(options: argparse.Namespace) -> int:
    """Answer; return 0, or 1 if it does not fit in what was asked for, or the script failed before it was seen."""
    check_script(options)
    check_outputs(options.json, options.report)
    if options.steps < 1:
        raise ValueError(f"--steps is 1 or more, not {options.steps}")
    from remint.advice.answers import Question
    from remint.advice.script_steps import script_steps
    from remint.advice.watch import Watch
    from remint.errors import BudgetError

    subject = shlex.join([*(["-m"] if options.module else []), options.script, *options.args])
    question = Question(
        subject, is_script=True, fits=options.fits, accepted=options.accept, try_it=not options.no_trial
    )
    stdout = reserve_stdout() if options.json == "-" else None
    watch = Watch(steps=options.steps, try_budget=question.try_budget)
    with script_steps(watch):
        ended = run_script(options, quiet=BudgetError)
        watch.close(ended.error)
    if not watch.recorded:
        hint = misplaced_options(options, _OPTIONS)
        reason = str(ended) or (
            f"It made {watch.seen_steps} steps of its optimizer, and {2 * options.steps + 3} are needed. Let it run "
            "longer, ask for fewer with --steps, or use remint.advise(step) in Python."
        )
        for line in ("No answer: too little was seen of the script.", reason, hint):
            if line:
                print(f"remint: {line}", file=sys.stderr)
        return ended.code or 1
    advice = question.with_trial(watch)
    _show(advice, options, stdout)
    return 1 if advice.fits is False else 0


def _show(advice: Advice, options: argparse.Namespace, stdout: object) -> None:
    if options.json is not None:
        write_json(options.json, advice.summary(), stdout=stdout)  # type: ignore[arg-type]
    if options.json != "-":
        print(advice)
    if options.report is not None:
        advice.report(options.report)
        print(f"remint: The report is {Path(options.report).resolve()}", file=sys.stderr)
