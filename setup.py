"""Builds `remint._core`, the torch-free engine. Everything else about the package is in pyproject.toml."""

import glob
import os

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

ParallelCompile(default=2).install()

# `make sanitize` builds the core a second time, with the checks of the compiler and its own assertions on.
SANITIZE = bool(os.environ.get("REMINT_SANITIZE"))
OPTIMIZED = ["-O3"]
SANITIZED = ["-O1", "-g", "-UNDEBUG", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

core = Pybind11Extension(
    "remint._core",
    sorted(glob.glob("csrc/*.cpp") + glob.glob("csrc/bindings/*.cpp")),
    include_dirs=["csrc"],
    depends=sorted(glob.glob("csrc/*.h") + glob.glob("csrc/bindings/*.h")),
    cxx_std=17,
    extra_compile_args=["-Wall", "-Wextra", *(SANITIZED if SANITIZE else OPTIMIZED)],
    extra_link_args=["-fsanitize=address,undefined"] if SANITIZE else [],
)

setup(ext_modules=[core])
