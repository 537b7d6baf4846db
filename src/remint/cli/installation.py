"""The commands `remint doctor` and `remint build`."""

from __future__ import annotations

import argparse
import sys

from remint.cli.output import EXAMPLES, add_json, write_json

_DOCTOR = """\
examples:
  remint doctor
  remint doctor --json -
  remint doctor --device cpu --samples 0 --json cpu.json
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
        "Exits with 1 if torch is installed and the runtime does not work. With --device, check instead whether "
        "budgets keep their promises on that device: bits, PyTorch's operators with everything evicted, the wall, "
        "streams. Measure what an op, an event, copies and moves cost. Attach the JSON to a report about hardware.",
        epilog=_DOCTOR,
        **EXAMPLES,
    )
    add_json(parser, "what was found")
    parser.add_argument("--device", metavar="NAME", help='check a device: "cpu", "cuda:0", "remint_test"')
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="with --device: at most so many samples of each operator, 0 for none (default: all, about 18,700: some "
        "minutes)",
    )
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
    if args.device is not None:
        return _check_device(args)
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


def _check_device(args: argparse.Namespace) -> int:
    import torch

    from remint.runtime.conformance import about, conformance
    from remint.testing import accelerator

    if args.device.partition(":")[0] == accelerator.NAME:
        accelerator.load()
    device = args.device
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from error
    checks = []
    for check in conformance(device, most_samples=args.samples):
        checks.append(check)
        if args.json != "-":
            sign = "-- " if check.ok is None else "ok " if check.ok else "BAD"
            print(f"{sign}  {check.what:38} {check.found}", flush=True)
    if args.json is not None:
        write_json(args.json, about(device) | {"checks": [check._asdict() for check in checks]})
    bad = [check for check in checks if check.ok is False]
    if bad:
        print(f"remint: {len(bad)} of {len(checks)} checks failed on {device}", file=sys.stderr)
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
