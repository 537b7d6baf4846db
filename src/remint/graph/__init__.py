"""One training step as a graph of ops and values, and plans: schedules of such a graph."""

from remint.graph.graph import Graph, Op
from remint.graph.plan import Plan
from remint.graph.steps import Compute, Fetch, Free, Offload
from remint.graph.tier import Tier
from remint.graph.verify import verify

__all__ = ["Compute", "Fetch", "Free", "Graph", "Offload", "Op", "Plan", "Tier", "verify"]
