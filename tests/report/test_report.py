"""Reports: one file that works offline, checked in a real browser where there is one."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

import remint
from remint import Graph, Run, generators, plan, simulate, sweep
from remint.cli import main
from remint.graph import Compute, Fetch, Free, Offload, Op, Plan, Tier
from remint.report import write_figure, write_html, write_snapshot
from remint.report.plan_data import plan_data, plan_holders
from remint.results.holders import peak_holders
from tests.support import chromium

TRACE = generators.unet(3)
RUN = simulate(TRACE, budget="60%", policy="coop", memory="arena", blocks=True)
PLAN = plan(Graph.from_trace(TRACE), "60%", "chen-sqrt")
TIER_RUN = simulate(
    TRACE, budget="40%", policy="coop", memory="arena", blocks=True, offload=remint.Offload(bytes="1GiB")
)
SWEEP = sweep({"U-Net": TRACE}, budgets=["80%", "60%", "40%"], policies=["coop", "lru"], memory="arena")


def embedded(path: Path) -> dict[str, object]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    write_html(tmp_path / "all.html", {"step": RUN, "planned": PLAN, "rows": SWEEP, "trace": TRACE})
    page = (tmp_path / "all.html").read_text()
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", page)
    data = embedded(tmp_path / "all.html")
    assert [run["type"] for run in data["runs"]] == ["run", "plan", "run"]
    assert [chart["name"] for chart in data["sweeps"]] == ["U-Net", "trace"]


def test_a_trace_comes_with_a_curve_of_budgets_against_cost(tmp_path: Path) -> None:
    TRACE.save(tmp_path / "step.trace")
    for budget in ([], ["--budget", "60%"]):
        assert main(["report", str(tmp_path / "step.trace"), *budget, "-o", str(tmp_path / "page.html")]) == 0
        (chart,) = embedded(tmp_path / "page.html")["sweeps"]
        (foremost,) = [series for series in chart["series"] if series["prominent"]]
        points = {point["x"]: point["slowdown"] for point in foremost["points"]}
        for percent in (80, 60):
            alone = simulate(TRACE, budget=f"{percent}%", policy=foremost["name"], memory="arena")
            assert points[percent] == alone.slowdown
    # A picture shows one item.
    pytest.importorskip("matplotlib")
    assert main(["report", str(tmp_path / "step.trace"), "--budget", "60%", "-o", str(tmp_path / "run.svg")]) == 0


def test_a_name_cannot_end_the_script(tmp_path: Path) -> None:
    write_html(tmp_path / "run.html", {"</script><script>alert(1)</script>": RUN})
    assert "</script><script>alert" not in (tmp_path / "run.html").read_text()


def test_a_run_survives_its_file(tmp_path: Path) -> None:
    RUN.save(tmp_path / "run.json")
    again = Run.load(tmp_path / "run.json")
    assert again == RUN
    assert again.rematerialized == RUN.rematerialized
    assert again.blocks.rectangles() == RUN.blocks.rectangles()


def test_a_live_run_has_a_report(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from remint.runtime import budget

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    with budget("1MiB", timeline=True) as run:
        model(torch.randn(512, 64)).square().mean().backward()
    run.report(tmp_path / "run.html")
    (data,) = embedded(tmp_path / "run.html")["runs"]
    assert data["line"]["resident"]
    assert max(data["line"]["resident"]) <= 2**20
    assert data["again"]
    assert "rects" not in data


def test_a_live_run_has_its_arena_and_modules(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from remint.runtime import budget

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    with budget("1MiB", blocks=True, source_lines=True) as run:
        model(torch.randn(512, 64)).square().mean().backward()
    run.report(tmp_path / "run.html")
    (data,) = embedded(tmp_path / "run.html")["runs"]
    assert data["marks"][0][1] == "backward"
    rects = data["rects"]
    assert {"first", "again", "evicted"} <= set(rects["kind"])
    assert max(a + n for a, n in zip(rects["address"], rects["nbytes"], strict=True)) <= 2**20
    _, _, _, _, why, module, line = next(row for row in data["again"] if row[0] == "aten::addmm")
    assert why
    assert module in {f"Sequential.{k}" for k in range(8)}
    assert line.startswith(f"{__file__}:")


def test_a_live_run_says_how_its_steps_were_decided_on(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from remint.runtime import budget

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with budget("1MiB", plan=False) as run:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(512, 64)).square().mean().backward()
            optimizer.step()
    run.report(tmp_path / "run.html")
    (data,) = embedded(tmp_path / "run.html")["runs"]
    phases = run.learning.phases
    assert {"greedy", "learned"} <= set(phases)
    assert [row[:2] for row in data["steps"]["rows"]] == [[name, str(phases[name].num_steps)] for name in phases]
    assert data["steps"]["note"] == f"{run.learning}."
    run.finished().save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json").learning == run.learning
    assert "steps" not in embedded_run(RUN, tmp_path)[0]


@pytest.mark.parametrize(
    ("name", "item"),
    [("run.png", RUN), ("tier.png", TIER_RUN), ("plan.svg", PLAN), ("sweep.svg", SWEEP), ("t.png", TRACE)],
)
def test_static_pictures(tmp_path: Path, name: str, item: object) -> None:
    pytest.importorskip("matplotlib")
    write_figure(tmp_path / name, item)
    assert (tmp_path / name).stat().st_size > 5_000


def test_the_snapshot_is_what_pytorch_reads(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "run.pickle", RUN)
    snapshot = pickle.loads((tmp_path / "run.pickle").read_bytes())
    (segment,) = snapshot["segments"]
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"] == RUN.budget_bytes
    live: dict[int, int] = {}
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
    assert sum(live.values()) == segment["allocated_size"]
    # torch.cuda._memory_viz is the code behind the viewer.
    viz = pytest.importorskip("torch.cuda._memory_viz")
    assert "= MEM[" in viz.trace(snapshot)
    assert viz.trace_plot(snapshot).startswith("\n<!DOCTYPE html>")


@pytest.mark.skipif(chromium.BINARY is None, reason="no chromium is installed")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    write_html(tmp_path / "all.html", {"step": RUN, "planned": PLAN, "rows": SWEEP, "tier": TIER_RUN})
    with chromium.Browser() as browser:
        browser.open(tmp_path / "all.html")
        browser.wait_for("document.body.dataset.ready === 'yes'")
        charts = browser.evaluate("document.querySelectorAll('canvas').length")
        assert charts == 8  # side by side, sweep, two runs: memory and arena, plan: memory and schedule
        texts = []
        for chart in range(charts):
            browser.evaluate(f"document.querySelectorAll('canvas')[{chart}].scrollIntoView({{block: 'center'}})")
            canvas = f"const c = document.querySelectorAll('canvas')[{chart}], r = c.getBoundingClientRect();"
            box = browser.evaluate(f"{{ {canvas} [r.left, r.top, r.width, r.height] }}")
            pixels = "c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
            drawn = browser.evaluate(f"{{ {canvas} new Set({pixels}).size }}")
            assert drawn > 20, "an empty canvas"
            for part in (0.3, 0.6, 0.9):
                browser.hover(box[0] + box[2] * part, box[1] + box[3] * 0.6)
                texts.append(browser.evaluate("document.getElementById('tip').textContent"))
        assert browser.errors == []
    for words in ("resident", "rematerialized", "first run", "planned: plan by chen-sqrt", "in the tier only"):
        assert any(words in text for text in texts), (words, texts)


def test_the_page_of_a_run_shows_its_tier(tmp_path: Path) -> None:
    assert TIER_RUN.num_fetches > 0
    write_html(tmp_path / "tier.html", [TIER_RUN])
    (data,) = embedded(tmp_path / "tier.html")["runs"]
    assert max(data["line"]["offloaded"]) > 0
    assert data["transfers"]["leaves"].count(False) == TIER_RUN.num_fetches
    leaves = TIER_RUN.num_offloads + TIER_RUN.num_clean_offloads
    assert sum(row[1] for row in data["offloaded"]) == leaves
    assert {row[3] for row in data["offloaded"]} <= {"it cannot be recomputed", "fetching it is quicker"}
    (without,) = embedded_run(RUN, tmp_path)
    assert without["line"]["offloaded"] is None
    assert "transfers" not in without
    assert sum(holder.nbytes for holder in peak_holders(TIER_RUN.blocks)) == TIER_RUN.peak_bytes


def embedded_run(run: Run, folder: Path) -> list[dict[str, object]]:
    write_html(folder / "run.html", [run])
    return embedded(folder / "run.html")["runs"]


@pytest.mark.parametrize("budget", ["100%", "60%"])
def test_the_holders_of_a_plan_add_up_to_its_peak(budget: str) -> None:
    made = plan(Graph.from_trace(TRACE), budget, "chen-sqrt")
    assert sum(holder.nbytes for holder in plan_holders(made)) == made.peak_bytes


def test_the_page_of_a_plan_with_a_tier_has_its_memory_and_its_waits() -> None:
    ops = (
        Op("make", 1, (), {"x": 4}),
        Op("wait", 1, (), {"y": 4}),
        Op("read", 1, ("x",), {"z": 2}),
    )
    graph = Graph(ops, {}, ("z",))
    steps = (Compute(0), Offload("x"), Free("x"), Compute(1), Free("y"), Fetch("x"), Compute(2), Free("x"))
    plan = Plan.from_steps(graph, steps, tier=Tier(bytes=4, bandwidth=2))
    data = plan_data(plan)
    assert data["end"] == plan.cost == 3 + 2 + 2
    assert data["schedule"]["begin"] == [0, 3, 6], "the second op waits for the copy, the third for the fetch"
    assert max(data["line"]["resident"]) == plan.peak_bytes == 6
    assert sum(row[3] for row in data["holders"]) == plan.peak_bytes
