"""`remint doctor`: checks that the parts of remint are installed, fit together and work."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from remint.native.compiler import compiler_command
from remint.version import __version__


class Finding(NamedTuple):
    """The result of one check. Optional parts may be missing."""

    what: str
    ok: bool
    optional: bool
    found: str


def run_checks() -> list[Finding]:
    """Run all checks; takes a few seconds, most of them to import torch.

    >>> all(finding.ok for finding in run_checks() if finding.what in ("remint", "core", "simulate"))
    True
    """
    # Without torch, remint simulates and plans. With torch, a runtime that does not work is an error.
    without_torch = importlib.util.find_spec("torch") is None
    checks: list[tuple[str, bool, Callable[[], str]]] = [
        ("remint", False, lambda: __version__),
        ("python", False, lambda: f"{platform.python_version()}, {platform.platform()}"),
        ("compiler", True, _compiler),
        ("core", False, lambda: str(importlib.import_module("remint._core").__file__)),
        ("simulate", False, _simulate),
        ("torch", True, lambda: importlib.metadata.version("torch")),
        ("runtime", without_torch, _runtime),
        ("budget", without_torch, _budget),
        ("planners", True, lambda: _versions("highspy", "ortools")),
        ("pictures", True, lambda: _versions("matplotlib")),
    ]
    findings: list[Finding] = []
    for what, optional, check in checks:
        # A budget without a runtime would try to build it once more, which takes minutes.
        if what != "budget" or findings[-1].ok:
            findings.append(_checked(what, optional, check))
    return findings


def _checked(what: str, optional: bool, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, optional, check())
    except ImportError as error:
        found = f"{error.name} is missing" if isinstance(error, importlib.metadata.PackageNotFoundError) else str(error)
        return Finding(what, False, optional, found)
    except Exception as error:
        # A part that is installed but fails is always an error, even an optional one.
        return Finding(what, False, False, f"{type(error).__name__}: {error}")


def _compiler() -> str:
    command = compiler_command()
    return subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def _versions(*packages: str) -> str:
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)


def _simulate() -> str:
    from remint.simulator import simulate
    from remint.trace import generators

    began = time.perf_counter()
    run = simulate(generators.unet(4), budget="60%", policy="coop", memory="arena", check=True)
    if run.status != "ok" or run.peak_bytes > run.budget_bytes:
        raise RuntimeError(f"a U-Net step did not fit in 60% of its peak: {run}")
    return f"a U-Net step in 60% of its peak: {run.slowdown:.2f}x, in {time.perf_counter() - began:.2f} s"


def _runtime() -> str:
    from remint import torch_extension

    module = torch_extension.load()
    return f"built for torch {module.torch_version}: {module.__file__}"


def _budget() -> str:
    from remint.runtime.self_test import self_test

    return self_test()
