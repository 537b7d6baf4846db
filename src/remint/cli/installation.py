"""The commands `remint doctor` and `remint build`."""

from __future__ import annotations

import argparse
import sys

from remint.cli.output import EXAMPLES, add_json, write_json

_DOCTOR = """\
examples:
  remint doctor
  remint doctor --json -
"""

_BUILD = """\
examples:
  remint build
  remint build --json -
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands; each sets `command`, a function from the parsed arguments to an exit code."""
    parser = commands.add_parser(
        "doctor",
        help="check versions, the compiler and the runtime, and run a short self-test",
        description="Check the installation. Builds the runtime for the installed torch, if that was not done before. "
        "Exits with 1 if torch is installed and the runtime does not work.",
        epilog=_DOCTOR,
        **EXAMPLES,
    )
    add_json(parser, "what was found")
    parser.set_defaults(command=_doctor)

    parser = commands.add_parser(
        "build",
        help="build the runtime for the installed torch now, not on first use",
        description="Build the part of remint that works on torch's tensors, for the installed torch, with the C++ "
        "compiler of this machine ($CXX, or g++). It is kept in a folder of the user. Without this command, the first "
        "budget builds it.",
        epilog=_BUILD,
        **EXAMPLES,
    )
    parser.add_argument("--again", action="store_true", help="build it even if there is one")
    add_json(parser, "where it is")
    parser.set_defaults(command=_build)


def _doctor(args: argparse.Namespace) -> int:
    from remint.cli.doctor import run_checks

    findings = run_checks()
    if args.json is not None:
        write_json(args.json, [finding._asdict() for finding in findings])
    if args.json != "-":
        for finding in findings:
            print(f"{'ok ' if finding.ok else '-- ' if finding.optional else 'BAD'}  {finding.what:12} {finding.found}")
    bad = [finding for finding in findings if not finding.ok and not finding.optional]
    if bad:
        print(f"remint: {len(bad)} of {len(findings)} checks failed, see above for what to do", file=sys.stderr)
    return 1 if bad else 0


def _build(args: argparse.Namespace) -> int:
    from remint import torch_extension

    if args.again:
        torch_extension.build(again=True)
    module = torch_extension.load()
    if args.json is not None:
        write_json(args.json, {"path": module.__file__, "torch": module.torch_version})
    if args.json != "-":
        print(f"the runtime for torch {module.torch_version}: {module.__file__}")
    return 0
