"""Results: a run, the log of its blocks, a sweep over many runs, the largest size that fits."""

from remint.results.run import Run
from remint.results.sweep import Sweep

__all__ = ["Run", "Sweep"]
