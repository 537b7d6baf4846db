"""One training step as a graph of ops and values, and plans: schedules of such a graph."""

from remint.graph.graph import Graph, Op
from remint.graph.plan import Plan
from remint.graph.steps import Compute, Free
from remint.graph.verify import verify

__all__ = ["Compute", "Free", "Graph", "Op", "Plan", "verify"]
