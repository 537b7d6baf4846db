"""Removes each ordering rule of streams, one at a time, and shows that a test fails: `make mutations`.

    python tests/mutations/ordering_rules.py [--soft] [--rule NAME] [--output FILE]

One module has all mutants. Each rule is a statement of the source. The copy that is compiled runs it only if the
environment variable REMINT_DROPPED_RULE does not name it. All other files are those of `make build`. The table goes to
FILE.

The rules of soft walls (`--soft`) need CUDA's allocator: their mutants are built beside those files that
`make cuda-check` has built, and run on its fake runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Setup(NamedTuple):
    """Where mutants are built, and what tests them."""

    built: Path  # by cmake, without mutants
    folder: Path
    python: Path
    environment: dict[str, str]
    tests: tuple[str, ...]
    options: tuple[str, ...]
    command: str


HARD = Setup(
    built=ROOT / "build" / "release",
    folder=ROOT / "build" / "mutants",
    python=Path(sys.executable),
    environment={},
    tests=(
        "tests/runtime/test_accelerator_streams.py",
        "tests/runtime/test_accelerator_stream_rules.py",
        "tests/runtime/test_accelerator_offload.py",
    ),
    options=("--accelerator",),
    command="make mutations",
)
SOFT = Setup(
    built=ROOT / "build" / "cuda",
    folder=ROOT / "build" / "cuda-mutants",
    python=ROOT / ".venv-cuda" / "bin" / "python",
    environment={"LD_PRELOAD": str(ROOT / "build" / "cuda" / "libfake_cuda.so"), "FAKE_CUDA_DELAY_US": "0"},
    tests=("tests/cuda/test_streams.py",),
    options=("-k", "soft"),
    command="python tests/mutations/ordering_rules.py --soft",
)


class Rule(NamedTuple):
    """A statement without which a program with two streams can go wrong."""

    name: str
    file: str
    statement: str


_ORDER = "csrc/torch/backends/stream_order.cpp"
_SESSION = "csrc/torch/session/session.cpp"
_REQUESTS = "csrc/torch/session/requests.cpp"
_CALL = "csrc/torch/session/op_call.cpp"
_REPLAY = "csrc/torch/session/torch_device.cpp"
_NATIVE = "csrc/torch/session/native_blocks.cpp"
RULES = (
    Rule("a read waits for writes", _ORDER, "wait_for(last_, read.writes);"),
    Rule("a write waits for writes", _ORDER, "wait_for(last_, written.writes);"),
    Rule("a write waits for reads", _ORDER, "wait_for(last_, written.reads);"),
    Rule("reuse waits for writes", _ORDER, "wait_for(last_, reused.writes);"),
    Rule("reuse waits for reads", _ORDER, "wait_for(last_, reused.reads);"),
    Rule(
        "reuse waits for recorded streams",
        _ORDER,
        "for (std::uint32_t stream : reused.recorded) wait(last_, next_use(stream));",
    ),
    Rule("a move waits for writes of its source", _ORDER, "before_read(from, nbytes);"),
    Rule("a move waits for users of its target", _ORDER, "before_reuse(to, nbytes);"),
    Rule("recorded streams are remembered", _ORDER, "used.recorded.push_back(number);"),
    Rule("work of before the second stream counts", _ORDER, "if (covered != end) add(whole.writes, before_spans());"),
    Rule(
        "joined memory keeps its writes",
        _ORDER,
        "for (const Use& write : part.writes) add(whole.writes, write);",
    ),
    Rule("joined memory keeps its reads", _ORDER, "for (const Use& read : part.reads) add(whole.reads, read);"),
    Rule(
        "joined memory keeps its recorded streams",
        _ORDER,
        "for (std::uint32_t stream : part.recorded) whole.recorded.push_back(stream);",
    ),
    Rule(
        "new memory is ordered", _SESSION, "if (state_.order != nullptr) state_.order->before_reuse(address, nbytes);"
    ),
    Rule(
        "record_stream is honoured",
        _SESSION,
        "state_.order->record_stream(address, static_cast<std::size_t>(nbytes), stream);",
    ),
    Rule("a reader outside waits", _REQUESTS, "note_read(value);\n  return value;"),
    Rule("a reader outside is waited for", _REQUESTS, "note_read(value);\n  state_.engine->unlock_for_read(value);"),
    Rule(
        "the arena is freed after all streams",
        _SESSION,
        "for (const c10::Stream& stream : state_.order->streams()) state_.region->used_by(stream);",
    ),
    Rule(
        "all streams wait for the end of a budget",
        _SESSION,
        "if (state_.order != nullptr) state_.order->publish();",
    ),
    Rule("an op waits for what it reads", _CALL, "state_.order->before_read(address, touched.storage->nbytes());"),
    Rule("an op waits for what it writes", _CALL, "state_.order->before_write(address, touched.storage->nbytes());"),
    Rule("a replay waits for its inputs", _REPLAY, "order.before_read(inputs[i], sizes[i]);"),
    Rule(
        "memory outside stays for a replay",
        _REPLAY,
        "state_.backend.keep_for_stream(state_.constants->storage(id)->_mutable_data_ptr_no_checks());",
    ),
    Rule("a replay in place waits", _REPLAY, "order.before_write(inputs[input], sizes[input]);"),
    Rule(
        "a replay in a copy waits for its memory",
        _REPLAY,
        "order.before_reuse(address_in_block(state_, blocks[k], sizes[input]), sizes[input]);",
    ),
    Rule(
        "a replay into given memory waits for it",
        _REPLAY,
        "if (state_.order != nullptr) state_.order->before_reuse(address(block, nbytes), nbytes);",
    ),
    Rule(
        "moves are ordered",
        _REPLAY,
        "state_.order->before_move(state_.region->at(to), state_.region->at(from), state_.nbytes_of(id));",
    ),
    Rule(
        "bytes are offloaded when they have come",
        _REPLAY,
        "if (state_.order != nullptr) state_.order->before_read(state_.address_of(id), nbytes);",
    ),
    Rule(
        "fetched bytes wait for their memory",
        _REPLAY,
        "if (state_.order != nullptr) state_.order->before_reuse(address, nbytes);",
    ),
    Rule(
        "a tensor that spills is copied when it has come",
        "csrc/torch/session/spill.cpp",
        "if (state.order != nullptr) state.order->before_read(state.address_of(id), nbytes);",
    ),
    Rule(
        "a survivor is copied when it has come",
        "csrc/torch/session/closing.cpp",
        "if (state.order != nullptr) state.order->before_read(address, nbytes);",
    ),
    Rule(
        "streams of survivors are recorded",
        "csrc/torch/session/region.cpp",
        "if (entry != nullptr) entry->region->used_by(stream);",
    ),
)
SOFT_RULES = (
    Rule("results are written by the stream that made them", _NATIVE, "state.order->before_write(address, nbytes);"),
    Rule("memory goes back when all streams have used it", _NATIVE, "state.backend.keep_for_stream(memory, stream);"),
    Rule(
        "record_stream is honoured with a soft wall",
        _CALL,
        """state_.order->record_stream(touched.storage->_mutable_data_ptr_no_checks().get(),
                                  touched.storage->nbytes(), stack_->back().toStream());""",
    ),
)

_SWITCH = """\
#include <cstdlib>
#include <cstring>
namespace remint {
static bool is_dropped(const char* rule) {
  static const char* dropped = std::getenv("REMINT_DROPPED_RULE");
  return dropped != nullptr && std::strcmp(dropped, rule) == 0;
}
}  // namespace remint
"""


def mutated(rule: Rule, source: str) -> str:
    """Return `source` with a switch for the rule."""
    if (times := source.count(rule.statement)) != 1:
        raise ValueError(f"{rule.file} has the statement of {rule.name!r} {times} times, not once: {rule.statement}")
    return source.replace(rule.statement, f'if (!is_dropped("{rule.name}")) {rule.statement}')


def build(setup: Setup, rules: tuple[Rule, ...]) -> None:
    """Build the runtime with a switch for every rule, in a package of links to src/remint."""
    built, package = setup.built, setup.folder / "package" / "remint"
    package.mkdir(parents=True, exist_ok=True)
    commands = {entry["file"]: entry for entry in json.loads((built / "compile_commands.json").read_text())}
    ninja = [Path(sys.executable).parent / "ninja", "-C", built, "-t", "commands", "_torch"]
    link = subprocess.run(ninja, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    compilers = []
    for file in sorted({rule.file for rule in rules}):
        text = (ROOT / file).read_text()
        for rule in rules:
            text = mutated(rule, text) if rule.file == file else text
        source = setup.folder / file
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(_SWITCH + text)
        command = commands[str(ROOT / file)]
        made, compiled = str(Path(command["output"]).relative_to(built)), str(source.with_suffix(".o"))
        link = link.replace(f" {made} ", f" {compiled} ")
        compiler: str = command["command"]
        compilers.append(compiler.replace(f"-o {made}", f"-o {compiled}").replace(f"-c {ROOT / file}", f"-c {source}"))

    def run(command: str) -> None:
        subprocess.run(command, shell=True, cwd=built, check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, compilers))
    # CMake writes outputs below the build folder without it.
    place = re.search(r" -o (\S*_torch\.\S*\.so) ", link)
    assert place is not None, link
    run(link.replace(place[0], f" -o {package / Path(place[1]).name} "))
    for file in (ROOT / "src" / "remint").iterdir():
        if file.name != "__pycache__" and not (file.name.startswith("_torch.") and file.suffix == ".so"):
            (package / file.name).unlink(missing_ok=True)
            (package / file.name).symlink_to(file)


def failed_tests(setup: Setup, rule: str, *arguments: str) -> list[str]:
    """Run tests without the rule, until one fails; return its name."""
    mutant = {"PYTHONPATH": str(setup.folder / "package"), "REMINT_DROPPED_RULE": rule}
    environment = {**os.environ, **setup.environment, **mutant}
    command = [setup.python, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-rf", *setup.tests, *setup.options]
    command += arguments
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        # A test that ends the process has failed, too; one that does not start at all has not.
        assert "passed" in ran.stdout or ran.returncode < 0, ran.stdout + ran.stderr
        return [f"the process ended with {ran.returncode}"]
    return re.findall(r"^FAILED \S*::(\S+)", ran.stdout, re.MULTILINE)


def show(setup: Setup, rules: list[Rule]) -> tuple[list[str], int]:
    """Return the table, and how many rules no test needs."""
    if failed := failed_tests(setup, ""):
        sys.exit(f"{failed[0]} fails with all rules: there is nothing to show")
    rows, survivors = [], 0
    for rule in rules:
        # Random programs take longest, and few rules need them.
        quick = ["-k", "late or not random and not offload"] if setup is HARD else []
        failed = failed_tests(setup, rule.name, *quick) or failed_tests(setup, rule.name)
        survivors += not failed
        print(f"{rule.name}: {failed[0] if failed else 'NO TEST FAILS'}", flush=True)
        rows.append(f"| {rule.name} | `{rule.file}` | {f'`{failed[0]}`' if failed else '**none**'} |")
    return rows, survivors


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soft", action="store_true", help="the rules of soft walls, on what `make cuda-check` built")
    parser.add_argument(
        "--rule", choices=[rule.name for rule in RULES + SOFT_RULES], action="append", help="only these"
    )
    parser.add_argument("--output", type=Path, help="where the table goes")
    arguments = parser.parse_args()
    setup, rules = (SOFT, SOFT_RULES) if arguments.soft else (HARD, RULES)
    build(setup, rules)
    rows, survivors = show(setup, [rule for rule in rules if rule.name in (arguments.rule or [rule.name])])
    if arguments.output:
        title = f"# Ordering rules of streams, each removed by itself\n\nCommand: `{setup.command}`. "
        passing = f"With all rules, all tests of {' and '.join(f'`{test}`' for test in setup.tests)} pass.\n\n"
        head = f"{passing}| rule | file | the first test that fails without it |"
        arguments.output.write_text("\n".join([title + head, "|---|---|---|", *rows, ""]))
    print(f"{len(rows)} rules, {survivors} that no test needs")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
