"""Builds `remint._torch` on first use, for the torch that is installed.

A wheel of remint has no part that depends on torch's version: it brings the C++ sources of `remint._torch`, and this
folder compiles them with the user's compiler, without cmake, ninja or a network.
"""

from remint.native.build import BuildError, TorchInstallation, built_module
from remint.native.sources import Sources

__all__ = ["BuildError", "Sources", "TorchInstallation", "built_module"]
