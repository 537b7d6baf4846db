"""Planners: from a graph and a budget to a plan.

contract.py says what a planner is, methods/ has one file per method, table.py names them, planning.py calls them.
"""

from remint.planners.contract import Progress
from remint.planners.planning import frontier, plan
from remint.planners.short_search import quick_plan, smallest_plan
from remint.planners.table import PLANNERS
from remint.planners.tiers.planning import PLANNERS_WITH_TIER

__all__ = ["PLANNERS", "PLANNERS_WITH_TIER", "Progress", "frontier", "plan", "quick_plan", "smallest_plan"]
