"""Builds `remint._core`, the torch-free engine. Everything else about the package is in pyproject.toml."""

import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

ParallelCompile(default=2).install()

core = Pybind11Extension(
    "remint._core",
    sorted(glob.glob("csrc/*.cpp") + glob.glob("csrc/bindings/*.cpp")),
    include_dirs=["csrc"],
    depends=sorted(glob.glob("csrc/*.h") + glob.glob("csrc/bindings/*.h")),
    cxx_std=17,
    extra_compile_args=["-O3", "-Wall", "-Wextra"],
)

setup(ext_modules=[core])
