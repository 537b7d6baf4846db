"""The include rules of the C++ code, through any number of steps. docs/design.md says what they are for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.import_graph import cpp_includes, forbidden, names_in

FOLDER = Path(__file__).resolve().parents[2] / "csrc"
GRAPH = cpp_includes(FOLDER)

# What each part may reach, itself apart. The planner shares nothing with the engine; `torch` does not link it.
REACHES = {
    "base": set(),
    "memory": {"base"},
    "engine": {"base", "memory", "policies"},
    "policies": {"base", "memory", "engine"},
    "simulator": {"base", "memory", "engine", "policies"},
    "learning": {"base", "memory", "engine", "policies", "simulator"},
    "planner": {"base"},
    "bindings": {"base", "memory", "engine", "policies", "simulator", "learning", "planner"},
    "torch": {"base", "memory", "engine", "policies", "simulator", "learning", "bindings"},
    "testing": set(),
}
TORCH_HEADERS = {
    name
    for includes in GRAPH.values()
    for name in includes
    if name not in GRAPH and name.split("/")[0] in ("ATen", "c10", "torch", "caffe2")
}

# What only a backend may name: the CPU, and how its memory and its random numbers work.
OF_A_BACKEND = re.compile(r"\b(?:memcpy|memmove|memset|mmap|munmap|madvise|CPUGeneratorImpl|DeviceType::CPU|kCPU)\b")

# What torch has only since some version. One file has it for older ones, too.
OF_NEWER_TORCH = re.compile(r"\b(?:clear_data_ptr_access_error_msg_|ThreadLocalPythonObjects::erase)\b")


def test_every_folder_has_a_rule() -> None:
    assert {name.split("/")[0] for name in GRAPH} == set(REACHES)


@pytest.mark.parametrize("part", REACHES)
def test_a_part_reaches_only_what_it_stands_on(part: str) -> None:
    others = set(REACHES) - REACHES[part] - {part}
    assert forbidden(GRAPH, names_in(GRAPH, part) & set(GRAPH), names_in(GRAPH, *others) & set(GRAPH)) == []


def test_only_the_torch_side_includes_torch() -> None:
    assert TORCH_HEADERS
    free = set(GRAPH) - names_in(GRAPH, "torch", "testing")
    assert forbidden(GRAPH, free, TORCH_HEADERS) == []


def test_every_own_header_is_found() -> None:
    """A misspelt folder would make a rule hold for want of edges."""
    named = {name for includes in GRAPH.values() for name in includes if "/" in name}
    assert {name for name in named if name.split("/")[0] in REACHES} - set(GRAPH) - TORCH_HEADERS == set()


def test_only_backends_know_the_cpu() -> None:
    found = {
        name
        for name in GRAPH
        if name.startswith("torch/") and not name.startswith("torch/backends/")
        if OF_A_BACKEND.search(without_comments((FOLDER / name).read_text()))
    }
    assert found == set()


def test_one_file_knows_versions_of_torch() -> None:
    found = {name for name in GRAPH if OF_NEWER_TORCH.search(without_comments((FOLDER / name).read_text()))}
    assert found == {"torch/older_torch.h"}


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
