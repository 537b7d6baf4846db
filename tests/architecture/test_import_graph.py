"""The checker finds what it is for, on made-up code that breaks the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.import_graph import cpp_includes, forbidden, names_in, python_imports


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    files = {
        "pkg/__init__.py": "from pkg.high import top\n",
        "pkg/low.py": "import json\n",
        "pkg/high/__init__.py": "",
        "pkg/high/top.py": "def late():\n    from pkg.middle import part\n    return part\n",
        "pkg/middle/__init__.py": "from pkg.middle.part import value\n",
        "pkg/middle/part.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch.nn\nvalue = 1\n",
        "pkg/middle/quiet.py": "from pkg import low\n",
        "pkg/user.py": "import pkg.middle.quiet\n",
    }
    return write(tmp_path, files) / "pkg"


def test_chains_go_through_functions_and_packages(package: Path) -> None:
    graph = python_imports(package)
    torch = names_in(graph, "torch")
    assert forbidden(graph, ["pkg.high.top"], torch) == ["pkg.high.top -> pkg.middle.part -> torch.nn"]
    # `quiet` imports no torch, but who imports it runs the package's __init__, which does.
    assert forbidden(graph, ["pkg.user"], torch) == ["pkg.user -> pkg.middle -> pkg.middle.part -> torch.nn"]
    assert forbidden(graph, ["pkg.low", "pkg.middle.quiet"], torch) == []


def test_names_that_only_begin_alike_are_other_names(package: Path) -> None:
    write(package, {"other.py": "import torchvision\n"})
    graph = python_imports(package)
    assert "torchvision" in graph["pkg.other"]
    assert names_in(graph, "torch") == {"torch.nn"}


def test_deferred_imports_can_be_left_out(package: Path) -> None:
    graph = python_imports(package, deferred=False)
    assert graph["pkg.high.top"] == frozenset()
    assert "torch.nn" not in graph["pkg.middle.part"]
    assert graph["pkg.middle.quiet"] == {"pkg.low"}


def test_the_root_is_an_import_like_any_other_if_it_is_asked_for(package: Path) -> None:
    write(package, {"outer.py": "from pkg import top\n"})
    assert python_imports(package)["pkg.outer"] == {"pkg"}


def test_relative_imports_are_refused(package: Path) -> None:
    write(package, {"near.py": "from . import low\n"})
    with pytest.raises(AssertionError, match=r"near.py:1"):
        python_imports(package)


def test_a_cycle_ends(package: Path) -> None:
    write(package, {"low.py": "import pkg.user\n"})
    graph = python_imports(package)
    assert forbidden(graph, ["pkg.low"], {"pkg.nowhere"}) == []
    assert forbidden(graph, ["pkg.low"], {"pkg.low"}) == []


def test_includes_are_followed(tmp_path: Path) -> None:
    files = {
        "base/types.h": "#include <vector>\n",
        "engine/engine.h": '#include "base/types.h"\n  #  include "device.h"\n',
        "engine/device.h": "#include <ATen/Context.h>\n",
        "planner/plan.cpp": '// #include "engine/device.h"\n#include "engine/engine.h"\n',
    }
    graph = cpp_includes(write(tmp_path, files))
    chain = "planner/plan.cpp -> engine/engine.h -> engine/device.h -> ATen/Context.h"
    assert forbidden(graph, ["planner/plan.cpp"], names_in(graph, "ATen")) == [chain]
    assert forbidden(graph, ["base/types.h"], names_in(graph, "ATen", "engine")) == []
