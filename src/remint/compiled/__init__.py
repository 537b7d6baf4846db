"""The compiled path: a plan of the planners, carried out by torch.compile."""

from remint.compiled.backend import backend
from remint.compiled.compile import Plans, compile
from remint.compiled.options import Options

__all__ = ["Options", "Plans", "backend", "compile"]
