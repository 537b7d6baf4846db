"""The C++ compiler of this machine, and how it compiles and links `remint._torch`: as CMakeLists.txt does."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_LIBRARIES = ("c10", "torch_cpu", "torch", "torch_python")
_BYTES_PER_JOB = 1 << 30
# A function of torch's allocator for CUDA that it has since 2.13. CMakeLists.txt looks for it, too.
_NEWEST_OF_ALLOCATOR = "markCaptureBegin"


class BuildError(ImportError):
    """`remint._torch` could not be built: the message says what is missing, or where the compiler's output is."""


@dataclass(frozen=True)
class TorchInstallation:
    """What the build has to know of the installed torch."""

    version: str
    folder: Path
    cxx11_abi: bool
    cuda: bool = False

    @property
    def cuda_headers(self) -> tuple[Path, ...]:
        """The folders of CUDA's headers, for a torch with CUDA: in its wheels, or of the toolkit.

        Empty if they are not found, or torch is older than the allocators that the CUDA backend is one of.
        """
        allocator = self.folder / "include/c10/cuda/CUDACachingAllocator.h"
        if not self.cuda or not allocator.exists() or _NEWEST_OF_ALLOCATOR not in allocator.read_text():
            return ()
        packages = self.folder.parent
        places = [*sorted(packages.glob("nvidia/cu[0-9]*/include")), packages / "triton/backends/nvidia/include"]
        places += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
        found = [
            next((place for place in places if (place / name).exists()), None)
            for name in ("cuda_runtime_api.h", "crt/host_defines.h")
        ]
        return () if None in found else tuple(place for place in found if place is not None)


@dataclass(frozen=True)
class Compiler:
    """A compiler with the flags of one build."""

    command: tuple[str, ...]
    is_gcc: bool
    flags: tuple[str, ...]

    @classmethod
    def find(cls, torch: TorchInstallation, csrc: Path) -> Compiler:
        """Return `$CXX`, or the compiler of the system."""
        command = compiler_command()
        python = Path(sysconfig.get_path("include"))
        if not (python / "Python.h").exists():
            raise BuildError(
                f"remint builds its runtime on first use, and Python's headers are missing ({python / 'Python.h'}). "
                "Install them (Debian and Ubuntu: apt install python3-dev), then run: remint build"
            )
        torch_headers = (torch.folder / "include", torch.folder / "include/torch/csrc/api/include")
        flags = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-w", f"-I{csrc}"]
        flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}", "-isystem", str(python)]
        for headers in (*torch_headers, *torch.cuda_headers):
            flags += ["-isystem", str(headers)]
        if torch.cuda_headers:
            flags += ["-DREMINT_CUDA"]
        return cls(command, _is_gcc(command), tuple(flags))

    def compile(self, source: Path, output: Path, *, precompiled: Path | None = None) -> list[str]:
        """Return the command that compiles a file; `precompiled` is a header that `precompile` compiled."""
        include = [] if precompiled is None else ["-include", str(precompiled)]
        return [*self.command, *self.flags, *include, "-c", str(source), "-o", str(output)]

    def precompile(self, header: Path) -> list[str]:
        """Return the command that compiles a header that includes others; only GCC looks for it by its name."""
        return [*self.command, *self.flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"]

    def link(self, objects: list[Path], torch: TorchInstallation, output: Path) -> list[str]:
        """Return the command that links the module.

        Python loads torch before the module: its libraries are found by name, and no path gets into the module.
        """
        names = (*_LIBRARIES, "c10_cuda") if torch.cuda_headers else _LIBRARIES
        libraries = [f"-L{torch.folder / 'lib'}", *(f"-l{name}" for name in names)]
        return [*self.command, "-shared", "-s", *map(str, objects), *libraries, "-o", str(output)]


def num_jobs() -> int:
    """Return how many files to compile at once: `$MAX_JOBS`, or one per core, if there is memory for it."""
    asked = os.environ.get("MAX_JOBS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    cores = len(os.sched_getaffinity(0))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores, free // _BYTES_PER_JOB))


def compiler_command() -> tuple[str, ...]:
    """Return `$CXX`, or the first compiler of the system that is there."""
    asked = tuple(shlex.split(os.environ.get("CXX", "")))
    if asked:
        if shutil.which(asked[0]) is None:
            raise BuildError(f"the compiler of the environment variable CXX, {asked[0]!r}, is not there")
        return asked
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return (name,)
    raise BuildError(
        "remint builds its runtime on first use, and there is no C++ compiler. Install one (Debian and Ubuntu: "
        "apt install g++; conda: conda install gxx), or name it in the environment variable CXX, then run: remint build"
    )


def _is_gcc(command: tuple[str, ...]) -> bool:
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return "Free Software Foundation" in said.stdout
