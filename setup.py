"""Builds the compiled parts. Everything else about the package is in pyproject.toml.

`remint._core` is the torch-free engine. `remint._torch` is the same engine on real tensors; it is built against the
torch that is installed, and left out where there is none, so build it with `pip install --no-build-isolation`.
"""

import glob
import importlib.util
import os

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

ParallelCompile(default=2).install()

# `make sanitize` builds the core a second time, with the checks of the compiler and its own assertions on.
SANITIZE = bool(os.environ.get("REMINT_SANITIZE"))
OPTIMIZED = ["-O3"]
SANITIZED = ["-O1", "-g", "-UNDEBUG", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]



def sources(*folders: str) -> list[str]:
    return sorted(path for folder in folders for path in glob.glob(f"csrc/{folder}/**/*.cpp", recursive=True))


ENGINE = sources("memory", "engine", "policies", "simulator")
HEADERS = sorted(glob.glob("csrc/**/*.h", recursive=True))

extensions = [
    Pybind11Extension(
        "remint._core",
        ENGINE + sources("planner", "bindings"),
        include_dirs=["csrc"],
        depends=HEADERS,
        cxx_std=17,
        extra_compile_args=["-Wall", "-Wextra", *(SANITIZED if SANITIZE else OPTIMIZED)],
        extra_link_args=["-fsanitize=address,undefined"] if SANITIZE else [],
    )
]

if importlib.util.find_spec("torch") is not None and not SANITIZE:
    from torch.utils import cpp_extension

    extensions.append(
        Pybind11Extension(
            "remint._torch",
            ENGINE + sources("torch"),
            include_dirs=["csrc", *cpp_extension.include_paths()],
            library_dirs=cpp_extension.library_paths(),
            libraries=["c10", "torch_cpu", "torch", "torch_python"],
            depends=HEADERS,
            cxx_std=20,
            extra_compile_args=["-O3", "-Wall", "-Wno-unknown-pragmas"],
        )
    )

setup(ext_modules=extensions)
