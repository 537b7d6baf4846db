"""The sources that a wheel brings are those that CMake compiles, with every header they include."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from remint.native import Sources
from tests.architecture.import_graph import cpp_includes

ROOT = Path(__file__).resolve().parents[2]
CMAKE = Path(sys.executable).parent / "cmake"


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_they_are_what_cmake_compiles() -> None:
    compiled = ROOT / "build" / "release" / "compile_commands.json"
    if not compiled.exists():
        pytest.skip("nothing was compiled here")
    commands = json.loads(compiled.read_text())
    targets = ("CMakeFiles/_torch.dir/csrc/", "CMakeFiles/remint_engine.dir/csrc/")
    sources = Sources(ROOT / "csrc")
    assert {sources.folder / path for path in [*sources.engine, *sources.runtime]} == {
        Path(command["file"]) for command in commands if any(target in command["output"] for target in targets)
    }


def test_an_installation_has_every_file_that_is_needed(tmp_path: Path) -> None:
    if not CMAKE.exists():
        pytest.skip("no cmake")
    build = tmp_path / "build"
    ninja = shutil.which("ninja", path=str(CMAKE.parent))
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DSKBUILD=ON", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    subprocess.run([CMAKE, "-S", ROOT, "-B", build, *options], check=True, capture_output=True)
    # Without building anything: the component has only the sources.
    install = [CMAKE, "--install", build, "--component", "sources", "--prefix", tmp_path]
    subprocess.run(install, check=True, capture_output=True)
    installed, checkout = Sources(tmp_path / "remint" / "csrc"), Sources(ROOT / "csrc")
    assert (installed.engine, installed.runtime) == (checkout.engine, checkout.runtime)
    included = {
        name
        for includes in cpp_includes(installed.folder).values()
        for name in includes
        if (checkout.folder / name).is_file()
    }
    assert included <= files(installed.folder)
    assert not any(name.startswith("planner/") for name in files(installed.folder))


def pack(what: str, folder: Path, **settings: str) -> Path:
    pytest.importorskip("scikit_build_core")
    code = (
        "import json, sys; from scikit_build_core import build; "
        "getattr(build, sys.argv[1])(sys.argv[2], json.loads(sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, what, str(folder), json.dumps(settings)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("remint-*")
    return archive


def test_a_wheel_has_all_of_python_and_no_module_of_the_checkout(tmp_path: Path) -> None:
    # Without cmake: a wheel brings only the modules that were built for it.
    with zipfile.ZipFile(pack("build_wheel", tmp_path, **{"wheel.cmake": "false"})) as opened:
        names = {name for name in opened.namelist() if name.startswith("remint/")}
    package = ROOT / "src" / "remint"
    expected = {f"remint/{name}" for name in files(package) if not name.endswith((".so", ".pyc"))}
    assert names == expected


def test_a_source_distribution_has_all_sources(tmp_path: Path) -> None:
    archive = pack("build_sdist", tmp_path)
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {f"csrc/{name}" for name in files(ROOT / "csrc")} <= names
    assert {"CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "src/remint/native/build.py"} <= names
    assert not any(name.endswith((".so", ".pyc")) or name.startswith(("tests/", ".venv/")) for name in names)


def test_the_digest_changes_with_any_file(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    before = Sources(tmp_path / "csrc").digest
    assert before == Sources(ROOT / "csrc").digest
    header = tmp_path / "csrc" / "base" / "types.h"
    header.write_text(header.read_text() + "\n")
    assert Sources(tmp_path / "csrc").digest != before
