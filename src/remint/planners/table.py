"""The planners by name: a new method is a file in methods/ and a row here. Tests run over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from remint.planners.contract import Planner
from remint.planners.methods.auto import auto
from remint.planners.methods.chain import chain
from remint.planners.methods.checkmate import checkmate
from remint.planners.methods.chen import chen_greedy, chen_greedy_ap, chen_sqrt, chen_sqrt_ap
from remint.planners.methods.demand import demand
from remint.planners.methods.dtr import dtr
from remint.planners.methods.griewank import griewank, griewank_ap
from remint.planners.methods.interval import interval
from remint.planners.methods.keep_and_drop import drop, keep
from remint.planners.methods.rounding import rounding, rounding_repair
from remint.planners.methods.search import search

PLANNERS: Mapping[str, Planner] = MappingProxyType(
    {
        "keep": keep,
        "drop": drop,
        "chen-sqrt": chen_sqrt,
        "chen-sqrt-ap": chen_sqrt_ap,
        "chen-greedy": chen_greedy,
        "chen-greedy-ap": chen_greedy_ap,
        "griewank": griewank,
        "griewank-ap": griewank_ap,
        "checkmate": checkmate,
        "rounding": rounding,
        "rounding-repair": rounding_repair,
        "interval": interval,
        "chain": chain,
        "dtr": dtr,
        "demand": demand,
        "search": search,
        "auto": auto,
    }
)
