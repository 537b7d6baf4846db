"""The commands `remint run` and `remint fit`: unmodified scripts inside a budget, from before their first tensor on."""

from __future__ import annotations

import argparse
import json
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from remint.cli_output import EXAMPLES, add_json, write_json
from remint.fitting import Attempt, search

_RUN = """\
examples:
  remint run --budget 2GiB train.py --epochs 3
  remint run --budget 2GiB --report run.html train.py
  remint run --budget 500MiB --overflow spill --json run.json -m package.train
"""

_FIT = """\
examples:
  remint fit train.py --vary batch_size=8:512 --budget 4GiB
  remint fit train.py --vary batch_size=8,16,32,64 --budget 4GiB --plot fit.svg -- --model gpt2
  remint fit train.py --vary size=64:1024:64 --budget 1GiB -- --width {size} --height {size}
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands, which import torch only when they run."""
    run = commands.add_parser(
        "run",
        help="run a script inside a memory budget",
        description="Run an unmodified script with all its CPU tensors in an arena of exactly the budget. Prints a "
        "summary to stderr at the end, also when the script fails, and exits with the script's exit code.",
        epilog=_RUN,
        **EXAMPLES,
    )
    run.add_argument("--budget", required=True, help='bytes, such as "2GiB"')
    run.add_argument("--policy", default="coop", help="who is evicted (default: coop)")
    run.add_argument(
        "--overflow", choices=("raise", "spill"), default="raise", help="what happens when it does not fit"
    )
    add_json(run, "the run")
    run.add_argument("--report", metavar="PATH", help="write a page about the run (.html)")
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    run.add_argument("script", help="the script")
    run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(command=run_command)

    fit = commands.add_parser(
        "fit",
        help="find the largest size at which a script trains inside a budget",
        description="Run a script again and again, each time in a process of its own with another size, and find the "
        "largest one that fits. The script gets --NAME SIZE, or the size in place of {NAME} in its arguments.",
        epilog=_FIT,
        **EXAMPLES,
    )
    fit.add_argument("script", help="the script")
    fit.add_argument("--vary", required=True, metavar="NAME=SIZES", help="LOW:HIGH, LOW:HIGH:STEP, or A,B,C")
    fit.add_argument("--budget", required=True, help='bytes, such as "2GiB"')
    fit.add_argument("--policy", default="coop", help="who is evicted (default: coop)")
    fit.add_argument("--plot", metavar="PATH", help="draw throughput against size (.png, .svg, .pdf)")
    add_json(fit, "all attempts")
    fit.add_argument("args", nargs="*", help="after --: the script's arguments")
    fit.set_defaults(command=fit_command)


def run_command(options: argparse.Namespace) -> int:
    """Run `options.script` in a budget; return its exit code."""
    from remint.online.budget import budget

    script, arguments = options.script, list(options.args)
    if not options.module and not Path(script).exists():
        raise ValueError(f"there is no file {script!r}: give the script to run after the options")
    sys.argv = [script, *arguments]
    code: Any = 0
    with_budget = budget(
        options.budget, policy=options.policy, overflow=options.overflow, timeline=bool(options.report or options.json)
    )
    with with_budget as run:
        try:
            if options.module:
                sys.path.insert(0, "")
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(script).resolve().parent))
                runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            run._failed(error)
            sys.excepthook(type(error), error, error.__traceback__)
        summary, text, result = run.summary(), str(run), run.finished()
    print(text, file=sys.stderr)
    if options.json is not None:
        write_json(options.json, result.to_json() | summary)
    if options.report is not None:
        result.report(options.report)
        print(f"report: {Path(options.report).resolve()}", file=sys.stderr)
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def fit_command(options: argparse.Namespace) -> int:
    """Search for the largest size; return 0 if there is one, else 1."""
    if not Path(options.script).exists():
        raise ValueError(f"there is no file {options.script!r}: give the script to run")
    name, sizes = _sizes(options.vary)

    def attempt(size: int) -> Attempt:
        return _attempt(options, name, size)

    def progress(tried: Attempt) -> None:
        verdict = f"fits, {tried.throughput:.1f} per second" if tried.fits else "does not fit"
        print(f"{name} {tried.size}: {verdict}", file=sys.stderr)

    found = search(attempt, sizes, budget=options.budget, progress=progress)
    if options.json is not None:
        write_json(options.json, found.summary())
    if options.json != "-":
        print(found)
    if options.plot:
        found.plot(options.plot)
    return 0 if found.largest is not None else 1


def _sizes(vary: str) -> tuple[str, list[int]]:
    name, _, text = vary.partition("=")
    spans = re.fullmatch(r"(\d+):(\d+)(?::(\d+))?", text)
    if name and spans and int(spans[3] or 1) > 0 and int(spans[1]) <= int(spans[2]):
        return name, list(range(int(spans[1]), int(spans[2]) + 1, int(spans[3] or 1)))
    if name and re.fullmatch(r"\d+(,\d+)*", text):
        return name, sorted({int(size) for size in text.split(",")})
    raise ValueError(f"--vary {vary!r} is not understood: write NAME=LOW:HIGH, NAME=LOW:HIGH:STEP or NAME=A,B,C")


def _attempt(options: argparse.Namespace, name: str, size: int) -> Attempt:
    place = f"{{{name}}}"
    arguments = [argument.replace(place, str(size)) for argument in options.args]
    if arguments == options.args:
        arguments += [f"--{name}", str(size)]
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "run.json"
        # A process of its own: what one size leaves behind does not count for the next.
        command = [sys.executable, "-m", "remint", "run", "--budget", options.budget, "--policy", options.policy]
        command += ["--json", str(figures), options.script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        data: dict[str, Any] = json.loads(figures.read_text()) if figures.exists() else {}
    if data.get("status") == "oom":
        return Attempt(size=size, fits=False, failure=data["failure"])
    if done.returncode != 0 or not data:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        reason = next((line for line in reversed(said) if re.match(r"\S*(Error|remint|usage)", line)), said[-1])
        raise ValueError(f"{options.script} failed with {name} {size}, exit code {done.returncode}: {reason}")
    return Attempt(
        size=size,
        fits=True,
        seconds=data["computed_seconds"] + data["bookkeeping_seconds"],
        peak_bytes=data["peak_bytes"],
        slowdown=data["slowdown"],
        num_rematerializations=data["num_rematerializations"],
    )
