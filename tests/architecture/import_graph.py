"""Who imports whom, through any number of steps: Python modules by `import`, C++ files by `#include`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

# What each module or file imports directly. Names that are no key are foreign: torch, numpy, <vector>.
Graph = Mapping[str, frozenset[str]]


def python_imports(package: Path, *, deferred: bool = True) -> dict[str, frozenset[str]]:
    """Return what each module of a package imports. Its own modules have their full names.

    Importing `a.b.c` runs `a/b/__init__.py`, so it counts as an import of `a.b` as well. It does not count as an import
    of the root `a`, which only lists the public names.

    With `deferred`, imports inside functions, for type checking and in stubs count too. Without, only those that run
    when the module is imported.
    """
    patterns = ("*.py", "*.pyi") if deferred else ("*.py",)
    paths = {_module(package, path): path for pattern in patterns for path in package.rglob(pattern)}
    return {name: frozenset(_imports(name, path, paths, deferred)) for name, path in paths.items()}


def _module(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(module: str, path: Path, modules: Mapping[str, Path], deferred: bool) -> Iterator[str]:
    root = module.split(".")[0]
    for node in _statements(ast.parse(path.read_text()), deferred):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports with their full names"
            # `from a import b` imports the module `a.b` if there is one, and a name of `a` otherwise.
            wholes = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [whole if whole in modules else str(node.module) for whole in wholes]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] != root:
                yield name
                continue
            # The packages that a module is in were there before it.
            packages = [".".join(parts[:end]) for end in range(2, len(parts))]
            yield from (each for each in packages if not module.startswith(f"{each}."))
            yield name


def _statements(tree: ast.AST, deferred: bool) -> Iterator[ast.AST]:
    if deferred:
        yield from ast.walk(tree)
        return
    for node in ast.iter_child_nodes(tree):
        in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not in_function and not for_types:
            yield node
            yield from _statements(node, deferred)


def cpp_includes(folder: Path) -> dict[str, frozenset[str]]:
    """Return what each C++ file under a folder includes. Its own files are named by their paths in it."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.suffix in (".h", ".cpp")}
    includes: dict[str, frozenset[str]] = {}
    for name, path in paths.items():
        found = set()
        for written in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', path.read_text(), re.MULTILINE):
            beside = str(Path(name).parent / written)
            found.add(beside if beside in paths and written not in paths else written)
        includes[name] = frozenset(found)
    return includes


def forbidden(graph: Graph, sources: Iterable[str], goals: Collection[str]) -> list[str]:
    """Return, for each source that reaches a goal, the shortest chain of imports by which it does."""
    chains = (_chain(graph, source, goals) for source in sorted(sources))
    return [" -> ".join(chain) for chain in chains if chain is not None]


def _chain(graph: Graph, start: str, goals: Collection[str]) -> list[str] | None:
    came_from: dict[str, str | None] = {start: None}
    queue = [start]
    for name in queue:  # grows while it is walked
        if name in goals and name != start:
            chain, step = [name], came_from[name]
            while step is not None:
                chain.append(step)
                step = came_from[step]
            return chain[::-1]
        for imported in sorted(graph.get(name, ())):
            if imported not in came_from:
                came_from[imported] = name
                queue.append(imported)
    return None


def names_in(graph: Graph, *folders: str) -> set[str]:
    """Return all names of a graph, own and foreign, that are one of these packages or folders or are inside one."""
    names = {*graph, *(name for imports in graph.values() for name in imports)}
    return {name for name in names if any(name == f or name.startswith((f"{f}.", f"{f}/")) for f in folders)}
