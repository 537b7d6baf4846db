"""Does `pip install` give a working runtime, with no other step? Tried as a new user would, in fresh environments.

python benchmarks/fresh_install.py                   # from a directory, a source distribution, a git URL and a wheel
python benchmarks/fresh_install.py directory sdist   # from some of them

Each environment is made anew: `pip install torch==2.13.0`, `pip install` of remint, `remint doctor`, which builds the
runtime into an empty cache, and `remint run --budget 60%` of the tutorial's script. Needs a package index, 5 GB of
disk, and about six minutes of CPU time for each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

import report

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"
TUTORIAL = ROOT / "docs" / "getting_started.md"


class Environment:
    """A fresh virtual environment in a folder that only it uses, and how long its commands took."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: list[str] = []
        venv.create(folder / "venv", with_pip=True)
        # What the user of this script has built or put on the path is not there.
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self._environment = {**clean, "XDG_CACHE_HOME": str(folder / "cache")}

    def run(self, *command: str | Path) -> str:
        """Run a command of the environment, away from the checkout."""
        program, *arguments = map(str, command)
        words = [str(self.folder / "venv/bin" / program), *arguments]
        done = subprocess.run(
            words, cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            raise SystemExit(f"{program} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def timed(self, *command: str | Path) -> str:
        """Run a command, and note its time and CPU time."""
        began, cpu = time.perf_counter(), _cpu_seconds()
        said = self.run(*command)
        self.seconds.append(f"{time.perf_counter() - began:.0f} s ({_cpu_seconds() - cpu:.0f} s)")
        return said


def _script() -> str:
    _, _, rest = TUTORIAL.read_text().partition("```python file=train.py\n")
    return rest.partition("```")[0]


def _cpu_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _sdist(environment: Environment) -> str:
    environment.run("python", "-m", "pip", "install", "--quiet", "build")
    environment.run("python", "-m", "build", "--quiet", "--sdist", "--outdir", environment.folder, ROOT)
    return str(next(environment.folder.glob("remint-*.tar.gz")))


def _wheel(environment: Environment) -> str:
    environment.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", environment.folder, ROOT)
    return str(next(environment.folder.glob("remint-*.whl")))


def _git_url(environment: Environment) -> str:
    clone = environment.folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    return f"git+file://{clone}"


# What `pip install` is given.
KINDS: dict[str, Callable[[Environment], str]] = {
    "directory": lambda environment: str(ROOT),
    "sdist": _sdist,
    "git": _git_url,
    "wheel": _wheel,
}


def tried(kind: str) -> list[str]:
    """Install remint in one way, and train; return a row of the table."""
    with tempfile.TemporaryDirectory(prefix="remint-fresh-") as folder:
        source = KINDS[kind](Environment(Path(folder) / "tools"))
        environment = Environment(Path(folder) / "fresh")
        environment.timed("pip", "install", "--quiet", TORCH)
        environment.timed("pip", "install", "--quiet", source)
        environment.timed("remint", "doctor")
        (environment.folder / "train.py").write_text(_script())
        said = environment.timed("remint", "run", "--budget", "60%", "train.py", "--epochs", "20")
        if "Fitted" not in said:
            raise SystemExit(f"the script was not fitted into its budget:\n{said}")
        fitted = next(line for line in said.splitlines() if "Fitted" in line)
        return [kind, *environment.seconds, fitted]


def main() -> None:
    """Try and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="kind", help=", ".join(KINDS))
    args = parser.parse_args()
    if unknown := set(args.kinds) - set(KINDS):
        parser.error(f"there is no {', '.join(sorted(unknown))}: choose from {', '.join(KINDS)}")
    rows = []
    for kind in args.kinds:
        rows.append(tried(kind))
        print(*rows[-1], sep="  ", flush=True)
    headings = ["pip install of", f"pip install {TORCH}", "pip install", "first remint doctor", "remint run", "it said"]
    notes = "Times on the clock; CPU time in brackets."
    report.publish("Fresh environments", report.markdown(headings, rows), notes=notes)


if __name__ == "__main__":
    main()
