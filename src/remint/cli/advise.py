"""The command `remint advise`: which budget a script can have, and what it costs."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from remint.cli.output import EXAMPLES, add_json, check_budgets, check_outputs, reserve_stdout, write_json
from remint.cli.script import add_script, check_script, misplaced_options, run_script
from remint.results.advice import Advice

_ADVISE = """\
examples:
  remint advise train.py --epochs 3
  remint advise --fits 24MiB --no-plan --report advice.html train.py
  remint advise --offload 8GiB --no-plan train.py
  remint advise --accept 1.5 --json - -m package.train
  remint advise --fake train.py:step --device a100-80gb   nothing is run
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command, which imports torch only when it runs."""
    parser = commands.add_parser(
        "advise",
        help="say which budget a script can have, and what it costs",
        description="Run some steps of an unmodified script on the CPU, and say what a step needs, what holds the "
        "memory, how much slower it is in each budget, and which one to use. A step ends where the optimizer steps. "
        "The script is stopped when the steps in that budget are learned, after 20 to 60 of them.",
        epilog=_ADVISE,
        **EXAMPLES,
    )
    _add_options(parser)
    parser.add_argument(
        "--fake",
        action="store_true",
        help="run nothing and allocate nothing: SCRIPT is script.py:fn, where fn() returns (model, args), and "
        "optionally kwargs and a loss function, as for `remint capture`",
    )
    add_script(parser)
    parser.set_defaults(command=advise_command)


def _add_options(parser: argparse.ArgumentParser) -> None:
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
        "--no-plan", action="store_true", help="do not plan the step in small budgets: quicker, and less is known"
    )
    parser.add_argument(
        "--offload",
        metavar="WHERE",
        help='also say what it costs with a second tier of memory: bytes, such as "16GiB", "disk", or a folder for the '
        "file. Not with --fake",
    )
    parser.add_argument(
        "--device",
        default="a100-80gb",
        help="with --fake: whose peak rates give the time, such as h100-80gb; or a .json file (default: a100-80gb)",
    )
    parser.add_argument(
        "--optimizer",
        choices=("sgd", "momentum", "adam"),
        default="adam",
        help="with --fake: whose state is counted (default: adam)",
    )
    parser.add_argument(
        "--report", metavar="PATH", help="write the answer as a page, with the memory-time curve (.html)"
    )
    add_json(parser, "the answer")


def advise_command(options: argparse.Namespace) -> int:
    """Answer; return 0, or 1 if it does not fit in what was asked for, or the script failed before it was seen."""
    if options.fake:
        return _advise_fake(options)
    _check_fits(options)
    check_outputs(options.json, options.report)
    check_script(options)
    if options.steps < 1:
        raise ValueError(f"--steps is 1 or more, not {options.steps}")
    from remint.advice.answers import Question
    from remint.advice.script_steps import script_steps
    from remint.advice.tier import Tier
    from remint.advice.watch import Watch
    from remint.errors import BudgetError

    subject = shlex.join([*(["-m"] if options.module else []), options.script, *options.args])
    question = Question(
        subject,
        is_script=True,
        fits=options.fits,
        accepted=options.accept,
        try_it=not options.no_trial,
        plan=not options.no_plan,
        offload=None if options.offload is None else Tier.of(options.offload),
    )
    stdout = reserve_stdout() if options.json == "-" else None
    watch = Watch(steps=options.steps, try_budget=question.try_budget)

    def step_ended() -> bool:
        watch.step_ended()
        return watch.done

    with script_steps(step_ended):
        ended = run_script(options, quiet=BudgetError)
    watch.close(ended.error)
    if not watch.recorded:
        hint = misplaced_options(options)
        reason = str(ended) or (
            f"Its optimizer stepped {watch.seen_steps} times, and {2 * options.steps + 3} are needed. Let it run "
            "longer, ask for fewer with --steps, or use remint.advise(step) in Python."
        )
        for line in ("No answer: too little was seen of the script.", reason, hint):
            if line:
                print(f"remint: {line}", file=sys.stderr)
        return ended.code or 1
    advice = question.with_trial(watch)
    _show(advice, options, stdout)
    return 1 if advice.fits is False else 0


def _advise_fake(options: argparse.Namespace) -> int:
    from remint.advice.devices import device_named
    from remint.advice.fake import advise_fake
    from remint.cli.step_function import load_step

    # Nothing is run, so there are no arguments of a script: options may stand on both sides of it.
    rest = argparse.ArgumentParser(prog="remint advise --fake script.py:fn", argument_default=argparse.SUPPRESS)
    _add_options(rest)
    for action in rest._actions:
        action.default = argparse.SUPPRESS
    options = rest.parse_args(options.args, namespace=options)
    _check_fits(options)
    check_outputs(options.json, options.report)
    if options.offload is not None:
        raise ValueError("--offload needs a run, which measures the tier: leave --fake or --offload out")
    device = device_named(options.device)
    advice = advise_fake(
        load_step(options.script),
        subject=options.script.rpartition(":")[2],
        device=device,
        optimizer=options.optimizer,
        fits=options.fits,
        accept=options.accept,
    )
    _show(advice, options, None)
    return 1 if advice.fits is False else 0


def _check_fits(options: argparse.Namespace) -> None:
    if options.fits is not None:
        check_budgets(options.fits, "--fits")


def _show(advice: Advice, options: argparse.Namespace, stdout: object) -> None:
    if options.json is not None:
        write_json(options.json, advice.summary(), stdout=stdout)  # type: ignore[arg-type]
    if options.json != "-":
        print(advice)
    if options.report is not None:
        advice.report(options.report)
        print(f"remint: The report is {Path(options.report).resolve()}", file=sys.stderr)
