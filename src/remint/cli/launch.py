"""Runs a script on several ranks by PyTorch's own launcher, each rank inside a budget."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from types import FrameType

_LAUNCHER = "torch.distributed.run"
# They start a script in other ways: those that take a module can start remint.
_OTHER_LAUNCHERS = ("torch.distributed.launch", "accelerate.commands.launch", "accelerate", "deepspeed", "mpirun")


def launches_ranks(options: argparse.Namespace) -> bool:
    """Return whether the script is a launcher, or ranks were asked for: then the workers get the budget."""
    if options.nproc is not None:
        return True
    name = options.script if options.module else options.script.replace("\\", "/").rpartition("/")[2]
    if name in _OTHER_LAUNCHERS:
        raise ValueError(
            f"{options.script} starts other processes, which would not be inside the budget. Let it start remint "
            "instead, where it takes a module (… -m remint run --budget … train.py), or use remint run --nproc"
        )
    return bool(name == (_LAUNCHER if options.module else "torchrun"))


def launch(options: argparse.Namespace) -> int:
    """Start the ranks, each as `remint run` of the script; return the launcher's exit code."""
    if options.nproc is None:
        launcher, script = _launcher_and_script(options.args)
    else:
        if options.nproc < 1:
            raise ValueError(f"--nproc is 1 process or more, not {options.nproc}")
        launcher = ["--standalone", "--nproc-per-node", str(options.nproc)]
        script = [*(["-m"] if options.module else []), options.script, *options.args]
    worker = ["-m", "remint", "run", "--budget", options.budget, *_own_options(options), *script]
    return _run([sys.executable, "-m", _LAUNCHER, *launcher, *worker])


def _own_options(options: argparse.Namespace) -> list[str]:
    """Return the options of remint, but for the budget, as words."""
    words = ["--policy", options.policy, "--overflow", options.overflow, "--max-slowdown", str(options.max_slowdown)]
    for name in ("offload", "stop_after", "json", "report"):
        if getattr(options, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    for name in ("source_lines", "verbose"):
        if getattr(options, name):
            words.append(f"--{name.replace('_', '-')}")
    return words


def _launcher_and_script(words: list[str]) -> tuple[list[str], list[str]]:
    """Divide the words after a launcher into its own options, and the script with its arguments."""
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(words)
    if parsed.no_python or parsed.run_path:
        raise ValueError(
            "--no-python and --run-path do not go with remint run: its workers are Python's, leave them out"
        )
    script = [parsed.training_script, *parsed.training_script_args]
    launcher = words[: len(words) - len(script)]
    if launcher and launcher[-1] == "--":
        launcher.pop()
    if not parsed.module:
        return launcher, script
    return launcher, ["-m", *script]


def _run(command: list[str]) -> int:
    """Run the launcher, and pass on the request to end. Ctrl-C reaches it by itself."""
    with subprocess.Popen(command) as process:

        def end(number: int, frame: FrameType | None) -> None:
            process.send_signal(number)

        before = signal.signal(signal.SIGTERM, end)
        try:
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:
                    # The launcher ends its workers first, which print their summaries.
                    continue
        finally:
            signal.signal(signal.SIGTERM, before)
