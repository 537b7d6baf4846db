"""What runs, plans and sweeps show in a notebook."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from remint import Graph, generators, plan, simulate, sweep
from remint.units import format_bytes


def texts(html: str) -> list[str]:
    """All texts of well-formed HTML; anything else raises."""
    return [text.strip() for text in ElementTree.fromstring(f"<div>{html}</div>").itertext() if text.strip()]


def test_a_run_shows_its_verdict() -> None:
    run = simulate(generators.unet(3), budget="60%", policy="coop", memory="arena", events=True)
    shown = texts(run._repr_html_())
    assert shown[0].startswith("Fitted into ")
    assert "coop, arena memory" in shown
    assert "recomputed most" in shown


def test_a_run_that_fails_says_so() -> None:
    trace = generators.unet(3)
    run = simulate(trace, budget=trace.min_budget_bytes // 2)
    assert texts(run._repr_html_())[0].startswith("Did not fit into ")


def test_a_plan_shows_what_runs_again() -> None:
    graph = Graph.from_trace(generators.unet(3))
    made = plan(graph, "60%", time_limit=2)
    shown = texts(made._repr_html_())
    assert shown[0].startswith("Fits ")
    assert shown[1:4] == ["op", "runs again", "time"]
    assert len(shown) > 4


def test_a_sweep_is_a_table_of_slowdowns() -> None:
    rows = sweep({"<step>": generators.unet(3)}, budgets=["80%", "5%"], policies=["lru", "dtr"])
    shown = texts(rows._repr_html_())
    assert shown[1:5] == ["trace", "policy", "80%", "5%"]
    assert shown[5:7] == ["<step>", "lru"]
    assert "oom" in shown


def test_with_blocks_a_run_knows_what_it_would_have_taken() -> None:
    trace = generators.unet(3)
    free = simulate(trace, budget="200%", policy="coop", memory="arena", blocks=True)
    run = simulate(trace, budget="60%", policy="coop", memory="arena", blocks=True)
    assert free.wanted_bytes == free.peak_bytes
    assert run.wanted_bytes is not None
    assert run.budget_bytes < run.wanted_bytes <= free.peak_bytes
    sentence = texts(run._repr_html_())[0]
    assert sentence.startswith(f"Fitted {format_bytes(run.wanted_bytes)} into {format_bytes(run.budget_bytes)}; ")
    assert simulate(trace, budget="60%").wanted_bytes is None
