"""What an op costs inside a budget, in instructions of the processor: the same on every run, however busy the machine.

python benchmarks/instructions_per_op.py                       # this checkout
python benchmarks/instructions_per_op.py ../before ../older    # and others, with their modules built

valgrind's callgrind counts the instructions of a process that runs an op N times, and of one that runs it M times. The
difference by M - N is what one op takes. Tensors have 8 x 8 numbers, the budget is never short and sees every op
(`learn=False`).
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import report

HERE = Path(__file__).parents[1]
FEW, MANY = 300, 1_300
OPS = ("add", "add_", "mm, sum, backward")


def work(op: str, times: int, *, inside: bool) -> None:
    """Run an op of PyTorch in a process that callgrind watches."""
    import torch

    import remint

    torch.set_num_threads(1)
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    w = torch.randn(8, 8, requires_grad=True)
    # Commits before learned steps have no such option.
    watching = {"learn": False} if "learn" in inspect.signature(remint.budget).parameters else {}
    with remint.budget("64MiB", **watching) if inside else contextlib.nullcontext():
        c = a + b
        for _ in range(times):
            match op:
                case "add":
                    a + b
                case "add_":
                    c.add_(b)
                case _:
                    (w @ a).sum().backward()


def instructions(checkout: Path, op: str, times: int, *, inside: bool) -> int:
    """Return the instructions of a whole process."""
    paths = os.pathsep.join(map(str, (checkout / "src", HERE / "benchmarks")))
    code = (
        f"import instructions_per_op, remint; assert remint.__file__.startswith({str(checkout)!r}), remint.__file__; "
        f"instructions_per_op.work({op!r}, {times}, inside={inside})"
    )
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-c", code]
    # Addresses and hashes change the way of dictionaries.
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


def per_op(checkout: Path, op: str, *, inside: bool) -> float:
    """Return the instructions of one op."""
    few, many = (instructions(checkout, op, times, inside=inside) for times in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or checkout.name


def main() -> None:
    """Count, and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("others", type=Path, nargs="*", help="other checkouts, with their modules in src/remint")
    parser.add_argument("--op", choices=OPS, action="append", help="only these")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: `apt install valgrind`, or the package of that name of your system")
    checkouts = [*(other.resolve() for other in args.others), HERE]
    rows = []
    for op in args.op or OPS:
        plain = per_op(HERE, op, inside=False)
        more = [per_op(checkout, op, inside=True) - plain for checkout in checkouts]
        rows.append([op, f"{plain:,.0f}", *(f"{count:,.0f}" for count in more)])
        print(rows[-1], file=sys.stderr, flush=True)
    headings = ["op", "without a budget", *(f"more in one, {commit_of(checkout)}" for checkout in checkouts)]
    report.publish("Instructions per op", report.markdown(headings, rows))


if __name__ == "__main__":
    main()
