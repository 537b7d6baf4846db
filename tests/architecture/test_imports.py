"""The import rules of the package, through any number of steps. docs/design.md says what they are for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.import_graph import forbidden, names_in, python_imports

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "remint"
GRAPH = python_imports(PACKAGE)
AT_IMPORT = python_imports(PACKAGE, deferred=False)

ENTRANCES = {"remint", "remint.__main__"}
COMMAND_LINE = names_in(GRAPH, "remint.cli")
INTEGRATIONS = names_in(GRAPH, "remint.integrations")
TORCH = names_in(GRAPH, "torch")
TORCH_SIDE = INTEGRATIONS | names_in(
    GRAPH,
    "remint.torch_extension",
    "remint._torch",
    "remint.capture",
    "remint.runtime",
    "remint.compiled",
    "remint.advice",
    "remint.testing",
)

# Lowest first. When a module is imported, it imports only from its own layer and from layers before it.
LAYERS = [
    {
        "errors",
        "defaults",
        "units",
        "version",
        "notebook",
        "file_format",
        "file_cache",
        "runtime_entrance",
        "engine_options",
        "offload",
        "_core",
    },
    {"trace", "generators"},
    {"graph"},
    {"results"},
    {"simulator"},
    {"planners"},
    {"report"},
    {"native"},
    {"torch_extension", "_torch"},
    {"capture"},
    {"runtime", "compiled"},
    {"advice"},
    {"integrations"},
    {"testing"},
    {"cli"},
]


@pytest.mark.parametrize(
    "part",
    ["trace", "graph", "results", "simulator", "planners", "capture", "runtime", "compiled", "advice", "report", "cli"],
)
def test_every_part_is_seen(part: str) -> None:
    assert len(names_in(GRAPH, f"remint.{part}")) > 1


def test_only_the_torch_side_reaches_torch() -> None:
    free = set(GRAPH) - TORCH_SIDE - COMMAND_LINE - ENTRANCES
    assert {"remint.planners.methods.auto", "remint.simulator.simulate", "remint.report.page"} <= free
    assert forbidden(GRAPH, free, TORCH) == []


def test_capture_does_not_reach_planners() -> None:
    assert forbidden(GRAPH, names_in(GRAPH, "remint.capture"), names_in(GRAPH, "remint.planners")) == []


@pytest.mark.parametrize(("part", "other"), [("compiled", "runtime"), ("runtime", "compiled"), ("capture", "runtime")])
def test_neighbours_do_not_reach_each_other(part: str, other: str) -> None:
    assert forbidden(GRAPH, names_in(GRAPH, f"remint.{part}"), names_in(GRAPH, f"remint.{other}")) == []


def test_nothing_reaches_the_command_line() -> None:
    assert forbidden(GRAPH, set(GRAPH) - COMMAND_LINE - {"remint.__main__"}, COMMAND_LINE) == []


def test_nothing_reaches_integrations() -> None:
    assert forbidden(GRAPH, set(GRAPH) - INTEGRATIONS, INTEGRATIONS) == []


def test_no_module_imports_the_public_names() -> None:
    """The root imports the parts, lazily the torch side too: whoever imports the root reaches everything."""
    assert [name for name, imports in GRAPH.items() if "remint" in imports] == []


def test_layers_are_imported_upwards() -> None:
    level = {f"remint.{name}": number for number, layer in enumerate(LAYERS) for name in layer}
    for module, imports in AT_IMPORT.items():
        if module in ENTRANCES:
            continue
        for imported in imports:
            if imported.startswith("remint."):
                own, other = (".".join(name.split(".")[:2]) for name in (module, imported))
                assert own == other or level[other] <= level[own], f"{module} imports {imported}"


def test_importing_remint_does_not_import_torch() -> None:
    code = "import sys, remint, remint.cli, remint.generators; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
