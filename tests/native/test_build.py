"""The build on first use: once for all processes, whole or not at all, with the compiler's output when it fails.

The sources here are a module of one line, compiled and linked as the runtime is. That the runtime's own sources compile
is seen by every `make build`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from remint.native import BuildError, Sources, TorchInstallation, built_module

torch = pytest.importorskip("torch")

INSTALLED = TorchInstallation(
    version=torch.__version__, folder=Path(torch.__file__).parent, cxx11_abi=torch.compiled_with_cxx11_abi()
)
MODULE = """
#include <Python.h>
#include "base/answer.h"
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_torch", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__torch() {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "answer", answer());
  return module;
}
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    folder = tmp_path / "csrc"
    for name, text in {
        "base/answer.h": "int answer();\n",
        "base/answer.cpp": '#include "base/answer.h"\nint answer() { return 42; }\n',
        "torch/precompiled.h": "#include <vector>\n",
        "torch/module.cpp": MODULE,
        "planner/broken.cpp": "this is not compiled\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Sources(folder)


def test_it_is_built_once(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    path = built_module(INSTALLED, sources)
    assert f"building the runtime for torch {INSTALLED.version}" in capsys.readouterr().err
    spec = importlib.util.spec_from_file_location("_torch", path)
    assert spec is not None
    assert importlib.util.module_from_spec(spec).answer == 42
    assert {file.name for file in path.parent.iterdir()} == {path.name, "lock"}
    made = path.stat().st_mtime_ns
    assert built_module(INSTALLED, Sources(sources.folder)) == path
    assert capsys.readouterr().err == ""
    assert path.stat().st_mtime_ns == made
    assert built_module(INSTALLED, sources, again=True).stat().st_mtime_ns > made


def test_other_sources_and_another_torch_are_built_apart(sources: Sources) -> None:
    path = built_module(INSTALLED, sources)
    (sources.folder / "base" / "answer.cpp").write_text("int answer() { return 43; }\n")
    assert built_module(INSTALLED, Sources(sources.folder)) != path
    assert built_module(replace(INSTALLED, version="9.9.9"), sources).parent.name != path.parent.name


def test_processes_build_once(sources: Sources) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from remint.native import Sources, TorchInstallation, built_module\n"
        "torch = TorchInstallation(version=sys.argv[1], folder=Path(sys.argv[2]), cxx11_abi=sys.argv[3] == 'True')\n"
        "print(built_module(torch, Sources(Path(sys.argv[4]))))\n"
    )
    arguments = [INSTALLED.version, INSTALLED.folder, INSTALLED.cxx11_abi, sources.folder]
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    said = [process.communicate() for process in processes]
    assert {process.returncode for process in processes} == {0}, said
    assert len({out for out, _ in said}) == 1
    assert sum("built the runtime" in err for _, err in said) == 1, said


def test_a_failure_names_the_compilers_output(sources: Sources) -> None:
    (sources.folder / "base" / "answer.cpp").write_text("int answer() { return forty_two; }\n")
    with pytest.raises(BuildError, match=r"error: .*forty_two.*run: remint build") as raised:
        built_module(INSTALLED, sources)
    (folder,) = (Path(os.environ["XDG_CACHE_HOME"]) / "remint").iterdir()
    assert {file.name for file in folder.iterdir()} == {"build.log", "lock"}
    assert str(folder / "build.log") in str(raised.value)
    assert "forty_two" in (folder / "build.log").read_text()
    (sources.folder / "base" / "answer.cpp").write_text("int answer() { return 42; }\n")
    assert built_module(INSTALLED, Sources(sources.folder)).exists()


def test_what_is_missing_is_named(sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        with pytest.raises(BuildError, match="CXX, 'no-such-compiler'"):
            built_module(INSTALLED, sources)
        patch.delenv("CXX")
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(BuildError, match=r"no C\+\+ compiler.*apt install g\+\+"):
            built_module(INSTALLED, sources)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BuildError, match=r"cannot write there: .* Set XDG_CACHE_HOME"):
        built_module(INSTALLED, sources)


def test_a_module_for_another_torch_is_not_loaded() -> None:
    from remint import torch_extension

    assert torch_extension._imported("0.0.1", cuda=False) is None
    assert torch_extension._imported(torch.__version__, cuda=torch.version.cuda is not None) is torch_extension.load()


@pytest.mark.slow
def test_a_torch_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from remint import torch_extension

    monkeypatch.setattr(torch, "__version__", "2.8.0+cu128")
    with pytest.raises(ImportError, match=r"needs torch 2\.9 or newer, and this is torch 2\.8\.0\+cu128"):
        torch_extension.load.__wrapped__()


def test_doctor_fails_without_a_runtime(tmp_path: Path) -> None:
    import remint

    package = tmp_path / "remint"
    package.mkdir()
    for path in Path(remint.__file__).parent.iterdir():
        if not path.name.startswith(("_torch.cpython", "__pycache__")):
            (package / path.name).symlink_to(path)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "CXX": "no-such-compiler",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    (package / "csrc").symlink_to(Sources.find().folder)
    command = [sys.executable, "-m", "remint", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "BAD  runtime" in done.stdout
    assert done.stdout.count("no-such-compiler") == 2, "the compiler, and one try to build"
    assert "ok   simulate" in done.stdout


@pytest.mark.slow
def test_threads_load_a_built_module_once(tmp_path: Path) -> None:
    """The module of this checkout stands for one that was built on first use."""
    from remint import torch_extension

    module = torch_extension.load().__file__
    code = (
        "import sys, threading, importlib.util, torch\n"
        "from pathlib import Path\n"
        "from remint import torch_extension\n"
        "found = importlib.util.find_spec\n"
        # No module in the package, until one is loaded.
        "importlib.util.find_spec = lambda name: found(name) if name in sys.modules else None\n"
        f"torch_extension.build = lambda: Path({module!r})\n"
        "loaded = []\n"
        "threads = [threading.Thread(target=lambda: loaded.append(torch_extension.load())) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "assert len(loaded) == 4 and len(set(map(id, loaded))) == 1, loaded\n"
        "import remint\n"
        "with remint.budget('1MiB'): torch.ones(8)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("text", "found"), [("void markCaptureBegin();", True), ("void older();", False)])
def test_the_cuda_backend_needs_the_allocators_of_torch_2_13(text: str, found: bool, tmp_path: Path) -> None:
    allocator = tmp_path / "torch/include/c10/cuda/CUDACachingAllocator.h"
    headers = tmp_path / "nvidia/cu13/include"
    for path, content in (
        (allocator, text),
        (headers / "cuda_runtime_api.h", ""),
        (headers / "crt/host_defines.h", ""),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    torch_with_cuda = replace(INSTALLED, folder=tmp_path / "torch", cuda=True)
    assert torch_with_cuda.cuda_headers == ((headers, headers) if found else ())
    assert replace(torch_with_cuda, cuda=False).cuda_headers == ()
