"""Imports go one way: this is the layout, checked."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "remint"


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_nothing_imports_the_command_line(path: Path) -> None:
    if path.parent.name == "cli" or path.name == "__main__.py":
        return
    assert "remint.cli" not in imports(path)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_only_the_torch_side_imports_torch(path: Path) -> None:
    if {"runtime", "capture", "compiled", "integrations", "torch_extension.py"} & set(path.relative_to(PACKAGE).parts):
        return
    assert not {name for name in imports(path) if name.split(".")[0] == "torch"}


@pytest.mark.parametrize(("folder", "other"), [("compiled", "runtime"), ("runtime", "compiled"), ("capture", "planners")])
def test_neighbours_do_not_know_each_other(folder: str, other: str) -> None:
    for path in (PACKAGE / folder).glob("*.py"):
        assert not {name for name in imports(path) if name.startswith(f"remint.{other}")}, path


def test_importing_remint_does_not_import_torch() -> None:
    code = "import sys, remint, remint.cli, remint.generators; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
