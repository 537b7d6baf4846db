"""One training step as a graph of ops and values, and plans: schedules of such a graph."""

from remint.graph.graph import Graph, Op
from remint.graph.plan import Compute, Free, Plan, verify

__all__ = ["Compute", "Free", "Graph", "Op", "Plan", "verify"]
