"""Make the pictures of README and docs: `python docs/make_images.py` (needs torch, and chromium for the screenshots).

The picture of a notebook needs nbconvert and ipykernel, too: it is left as it is where they are missing.

`report_run` and `report_advice` are of real runs, so their times are this machine's. The costs of the others are
estimated, not measured: they come out the same everywhere.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import remint
from remint.graph.trace_conversion import trace_from_graph
from remint.planners.sweep import sweep_planners
from remint.report import write_html

TITLES = {
    "report_run": "A U-Net step in 60% of its memory",
    "report_advice": "Which budget for a U-Net step?",
    "report_plan": "A U-Net step in 60% of its memory, planned and online",
    "report_sweep": "A U-Net step, all policies and two planners",
    "report_dtr": "A U-Net step in 60% of its memory, dtr-eq on the same arena",
}
HEIGHTS = {"report_sweep": 680, "report_advice": 1440}
ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "demo")]

from tests.support import chromium  # noqa: E402 (found by the line above)


def main() -> None:
    """Write all pictures."""
    import torch
    from models import make

    torch.set_num_threads(1)
    model, batch = make("unet")
    graph = remint.capture(model, batch, costs="estimate")
    trace, _ = trace_from_graph(graph)
    runs = {
        policy: remint.simulate(
            trace, budget="60%", policy=policy, memory="arena", moving=policy == "coop", blocks=True
        )
        for policy in ("coop", "dtr-eq")
    }
    model(*batch).backward()  # the first step is not like the others
    model.zero_grad()
    with remint.budget("1GiB") as free:
        model(*batch).backward()
    model.zero_grad()
    with remint.budget(free.peak_bytes * 6 // 10, blocks=True, source_lines=True) as live:
        model(*batch).backward()
    model.zero_grad()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def train_unet() -> None:
        optimizer.zero_grad()
        model(*batch).backward()
        optimizer.step()

    advice = remint.advise(train_unet)
    plan = remint.plan(graph, "60%", time_limit=10)
    budgets = [f"{percent}%" for percent in range(30, 101, 10)]
    step = {"U-Net": trace}
    policies = remint.sweep(step, budgets=budgets, policies="all", memory="arena")
    planners = sweep_planners(step, ["auto", "chen-sqrt"], budgets, time_limit=5)

    with tempfile.TemporaryDirectory() as name, chromium.Browser(1280, 1640) as browser:
        pages = {
            "report_run": [live],
            "report_advice": [advice],
            "report_plan": {"planned": plan, "online": runs["coop"]},
            "report_sweep": [remint.Sweep([*policies, *planners])],
            "report_dtr": [runs["dtr-eq"]],
        }
        for page, items in pages.items():
            path = Path(name) / f"{page}.html"
            write_html(path, items, title=TITLES[page])
            browser.open(path)
            browser.wait_for("document.body.dataset.ready === 'yes'")
            canvases = "document.querySelectorAll('canvas')"
            where = browser.evaluate(
                f"{{ const r = {canvases}[Math.min(1, {canvases}.length - 1)].getBoundingClientRect();"
                " [r.left + r.width * 0.62, r.top + r.height * 0.42] }"
            )
            browser.hover(*where)
            browser.screenshot(IMAGES / f"{page}.png", height=HEIGHTS.get(page, 1640))
        notebook(Path(name), browser)
        assert not browser.errors, browser.errors


def notebook(folder: Path, browser: chromium.Browser) -> None:
    """Run the example notebook, and take a picture of it."""
    if not (importlib.util.find_spec("nbconvert") and importlib.util.find_spec("ipykernel")):
        print("notebook.png is left as it is: it needs nbconvert and ipykernel", file=sys.stderr)
        return
    command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "html", "--output-dir", str(folder)]
    subprocess.run([*command, str(ROOT / "examples" / "notebook.ipynb")], check=True)
    # nbconvert's page asks a server for MathJax, which nothing here needs.
    path = folder / "notebook.html"
    page = re.sub(r"<script[^>]*(src=|mathjax|require).*?</script>", "", path.read_text(), flags=re.DOTALL | re.I)
    path.write_text(page)
    browser.open(path)
    browser.wait_for("document.readyState === 'complete'")
    browser.screenshot(IMAGES / "notebook.png", height=1130)


if __name__ == "__main__":
    main()
