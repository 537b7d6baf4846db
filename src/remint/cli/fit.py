"""The command `remint fit`: the largest size at which a script trains inside a budget."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from remint.cli.output import EXAMPLES, add_json, check_outputs, write_json
from remint.cli.run import check_budget
from remint.cli.termination import Terminated, raises_on_sigterm
from remint.results.largest_fit import Attempt, Fit, find_largest
from remint.units import parse_budget

_FIT = """\
examples:
  remint fit train.py --vary batch_size=8:64 --budget 4GiB
  remint fit train.py --vary batch_size=8,16 --budget 4GiB -- --model gpt2
  remint fit train.py --vary batch_size=8,16 --budget 4GiB --plot fit.svg
  remint fit train.py --vary size=64:256:64 --budget 1GiB -- --width {size}
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    fit = commands.add_parser(
        "fit",
        help="find the largest size at which a script trains inside a budget",
        description="Run a script again and again, each time in a process of its own with another size, and find the "
        "largest one that fits. The script gets --NAME SIZE, or the size in place of {NAME} in its arguments. While a "
        "size is slow, a line says so. A size that becomes slower than --max-slowdown does not fit. Ctrl-C and SIGTERM "
        "print what was found so far.",
        epilog=_FIT,
        **EXAMPLES,
    )
    fit.add_argument("script", help="the script")
    fit.add_argument("--vary", required=True, metavar="NAME=SIZES", help="LOW:HIGH, LOW:HIGH:STEP, or A,B,C")
    fit.add_argument("--budget", required=True, help='bytes, such as "2GiB"')
    fit.add_argument("--policy", default="coop", help="chooses what is evicted (default: coop)")
    fit.add_argument(
        "--max-slowdown",
        type=float,
        default=10.0,
        metavar="TIMES",
        help="a size does not fit if a step becomes slower than this; inf for no limit (default: 10)",
    )
    fit.add_argument("--plot", metavar="PATH", help="draw throughput against size (.png, .svg, .pdf)")
    add_json(fit, "all attempts")
    # The parser itself takes what follows `--` away: argparse has no place for it after options.
    fit.add_argument("args", nargs="*", metavar="-- args", help="after --: the script's own arguments")
    fit.set_defaults(command=fit_command)


def fit_command(options: argparse.Namespace) -> int:
    """Search for the largest size; return 0 if there is one, else 1."""
    if not Path(options.script).exists():
        raise ValueError(f"there is no file {options.script!r}: give the script to run")
    check_budget(options.budget)
    check_outputs(options.json, options.plot)
    if not options.max_slowdown > 1:
        raise ValueError(f"--max-slowdown is more than 1, or inf for no limit, not {options.max_slowdown}")
    name, sizes = _sizes(options.vary)
    tried: list[Attempt] = []

    def attempt(size: int) -> Attempt:
        return _attempt(options, name, size)

    def progress(last: Attempt) -> None:
        tried.append(last)
        verdict = f"fits, {last.throughput:.1f} per second" if last.fits else "does not fit"
        print(f"{name} {last.size}: {verdict}", file=sys.stderr)

    stopped: BaseException | None = None
    try:
        with raises_on_sigterm():
            found = find_largest(attempt, sizes, budget=options.budget, progress=progress)
    except (KeyboardInterrupt, Terminated, ValueError) as error:
        if not tried:
            raise
        # What was found so far is worth having.
        stopped = error
        in_order = tuple(sorted(tried, key=lambda attempt: attempt.size))
        found = Fit(budget_bytes=parse_budget(options.budget), attempts=in_order)
    if options.json is not None:
        write_json(options.json, found.summary())
    if options.json != "-":
        print(found)
    if options.plot:
        found.plot(options.plot)
    if stopped is not None:
        raise stopped
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
        command += ["--max-slowdown", str(options.max_slowdown), "--json", str(figures), options.script, *arguments]
        code, output = _run(command, f"{name} {size}")
        data: dict[str, Any] = json.loads(figures.read_text()) if figures.exists() else {}
    if data.get("status") == "oom":
        return Attempt(size=size, fits=False, failure=data["failure"])
    if code != 0 or not data:
        said = (output.strip() or "nothing").splitlines()
        # The script's own error, or what remint said about its arguments.
        errors = [line for line in said if re.match(r"[\w.]*(Error|Exception|error)\b", line)]
        reason = (errors or [line for line in said if line.startswith("remint: ")] or said)[-1]
        raise ValueError(f"{options.script} failed with {name} {size}, exit code {code}: {reason}")
    return Attempt(
        size=size,
        fits=True,
        seconds=sum(data[f"{part}_seconds"] for part in ("computed", "rematerialized", "search", "bookkeeping")),
        peak_bytes=data["peak_bytes"],
        slowdown=data["slowdown"],
        num_rematerializations=data["num_rematerializations"],
    )


def _run(command: list[str], what: str) -> tuple[int, str]:
    """Run a command; return its exit code, and what it said on stderr, or else on stdout.

    What it says about slow steps is passed on at once.
    """
    said: list[str] = []

    def listen(stream: IO[str]) -> None:
        for line in stream:
            said.append(line)
            slow = re.search(r"remint: ((this )?step (\d+|is).*?slower.*?\.)( |$)", line)
            if slow:
                print(f"{what}: {slow[1]}", file=sys.stderr, flush=True)

    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        listener = threading.Thread(target=listen, args=(process.stderr,))
        listener.start()
        try:
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            listener.join()
        output.seek(0)
        return process.returncode, "".join(said) if "".join(said).strip() else output.read()
