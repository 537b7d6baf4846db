"""The compiled path: a plan of the planners, carried out by torch.compile."""

from remint.executor.backend import backend
from remint.executor.front import Plans, compile
from remint.executor.options import Options

__all__ = ["Options", "Plans", "backend", "compile"]
