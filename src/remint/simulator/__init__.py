"""The simulator: the engine on a device that only advances a clock."""

from remint.simulator.simulate import policy_names, simulate
from remint.simulator.sweep import smallest_budget, sweep

__all__ = ["policy_names", "simulate", "smallest_budget", "sweep"]
