"""DTR's figure 2: slowdown against budget, for every policy, on ideal memory (as in the paper) or on the arena.

The authors' traces, where they lie beside the project, and recorded steps of the paper's networks (recorded.py).

A missing point is a run that did not fit or took more than twice the time, as in the paper.
"""

from __future__ import annotations

import argparse

from recorded import STEPS, record_steps
from remint import Sweep, policy_names, sweep
from remint.report.data import sweep_data
from remint.report.figures import sweep_figure
from report import FULL, markdown, publish
from traces import dtr_traces, generated_traces

NOTES = """\
`oom`: did not fit; `thrash`: more than twice the time. What was recorded has the weights elsewhere, so the peak is that
of activations and gradients, and gradients of leaves stay where they are. On ideal memory an op in place makes a copy,
as in DTR's simulator: a gradient that is summed up over the steps of the LSTM takes all of them to be made again.\
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", choices=["ideal", "arena"], default="ideal")
    memory = parser.parse_args().memory
    traces = dtr_traces() | record_steps(STEPS) | (generated_traces() if FULL else {})
    budgets = [f"{percent}%" for percent in (range(10, 101, 5) if FULL else range(20, 101, 20))]
    names = policy_names(memory)  # type: ignore[arg-type]
    # Only coop moves blocks; the others are as their papers have them.
    rows_of_all = [
        row
        for policy in names
        for row in sweep(traces, budgets=budgets, policies=[policy], memory=memory, moving=policy == "coop", jobs=1)
    ]
    rows = Sweep(sorted(rows_of_all, key=lambda row: (list(traces).index(row["trace"]), names.index(row["policy"]))))
    table = []
    for trace in traces:
        for policy in dict.fromkeys(row["policy"] for row in rows):
            found = [row for row in rows if (row["trace"], row["policy"]) == (trace, policy)]
            cells = [f"{row['slowdown']:.3f}" if row["status"] == "ok" else row["status"] for row in found]
            table.append([trace, policy, *cells])
    publish(
        f"DTR's figure 2: slowdown against budget, on {memory} memory",
        markdown(["trace", "policy", *budgets], table),
        notes=NOTES,
        figure=sweep_figure(sweep_data(rows)),
        name="dtr_slowdown" if memory == "ideal" else "dtr_slowdown_arena",
    )


if __name__ == "__main__":
    main()
