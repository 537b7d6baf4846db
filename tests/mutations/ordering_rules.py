"""Removes each ordering rule of streams, one at a time, and shows that a test fails: `make mutations`.

    python tests/mutations/ordering_rules.py [--rule NAME] [--output FILE]

One module has all mutants. Each rule is a statement of the source. The copy that is compiled runs it only if the
environment variable REMINT_DROPPED_RULE does not name it. All other files are those of `make build`. The table goes to
FILE.
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
FOLDER = ROOT / "build" / "mutants"
TESTS = ("tests/runtime/test_accelerator_streams.py", "tests/runtime/test_accelerator_stream_rules.py")


class Rule(NamedTuple):
    """A statement without which a program with two streams can go wrong."""

    name: str
    file: str
    statement: str


_ORDER = "csrc/torch/backends/stream_order.cpp"
_SESSION = "csrc/torch/session/session.cpp"
_CALL = "csrc/torch/session/op_call.cpp"
_REPLAY = "csrc/torch/session/torch_device.cpp"
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
    Rule("a reader outside waits", _SESSION, "note_read(value);\n  return value;"),
    Rule("a reader outside is waited for", _SESSION, "note_read(value);\n  state_.engine->unlock_for_read(value);"),
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


def build() -> None:
    """Build the runtime with a switch for every rule, in a package of links to src/remint."""
    release, package = ROOT / "build" / "release", FOLDER / "package" / "remint"
    package.mkdir(parents=True, exist_ok=True)
    commands = {entry["file"]: entry for entry in json.loads((release / "compile_commands.json").read_text())}
    ninja = [Path(sys.executable).parent / "ninja", "-C", release, "-t", "commands", "_torch"]
    link = subprocess.run(ninja, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    compilers = []
    for file in sorted({rule.file for rule in RULES}):
        text = (ROOT / file).read_text()
        for rule in RULES:
            text = mutated(rule, text) if rule.file == file else text
        source = FOLDER / file
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(_SWITCH + text)
        command = commands[str(ROOT / file)]
        made, compiled = str(Path(command["output"]).relative_to(release)), str(source.with_suffix(".o"))
        link = link.replace(f" {made} ", f" {compiled} ")
        compiler: str = command["command"]
        compilers.append(compiler.replace(f"-o {made}", f"-o {compiled}").replace(f"-c {ROOT / file}", f"-c {source}"))

    def run(command: str) -> None:
        subprocess.run(command, shell=True, cwd=release, check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, compilers))
    run(link.replace(f"-o {ROOT / 'src' / 'remint'}", f"-o {package}"))
    for file in (ROOT / "src" / "remint").iterdir():
        if file.name != "__pycache__" and not (file.name.startswith("_torch.") and file.suffix == ".so"):
            (package / file.name).unlink(missing_ok=True)
            (package / file.name).symlink_to(file)


def failed_tests(rule: str, *arguments: str) -> list[str]:
    """Run tests without the rule, until one fails; return its name."""
    environment = {**os.environ, "PYTHONPATH": str(FOLDER / "package"), "REMINT_DROPPED_RULE": rule}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-rf", "--accelerator", *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        # A test that ends the process has failed, too; one that does not start at all has not.
        assert "passed" in ran.stdout or ran.returncode < 0, ran.stdout + ran.stderr
        return [f"the process ended with {ran.returncode}"]
    return re.findall(r"^FAILED \S*::(\S+)", ran.stdout, re.MULTILINE)


def show(rules: list[Rule]) -> tuple[list[str], int]:
    """Return the table, and how many rules no test needs."""
    if failed := failed_tests("", *TESTS):
        sys.exit(f"{failed[0]} fails with all rules: there is nothing to show")
    rows, survivors = [], 0
    for rule in rules:
        failed = failed_tests(rule.name, *TESTS, "-k", "not random") or failed_tests(rule.name, *TESTS)
        survivors += not failed
        print(f"{rule.name}: {failed[0] if failed else 'NO TEST FAILS'}", flush=True)
        rows.append(f"| {rule.name} | `{rule.file}` | {f'`{failed[0]}`' if failed else '**none**'} |")
    return rows, survivors


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", choices=[rule.name for rule in RULES], action="append", help="only these")
    parser.add_argument("--output", type=Path, help="where the table goes")
    arguments = parser.parse_args()
    build()
    rows, survivors = show([rule for rule in RULES if rule.name in (arguments.rule or [rule.name])])
    if arguments.output:
        title = "# Ordering rules of streams, each removed by itself\n\nCommand: `make mutations`. "
        passing = f"With all rules, all tests of `{TESTS[0]}` and `{TESTS[1]}` pass.\n\n"
        head = f"{passing}| rule | file | the first test that fails without it |"
        arguments.output.write_text("\n".join([title + head, "|---|---|---|", *rows, ""]))
    print(f"{len(rows)} rules, {survivors} that no test needs")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
