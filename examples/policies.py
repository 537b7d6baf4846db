"""One training step of a U-Net under smaller and smaller budgets, with every policy: what does each cost?

This is the whole simulator in a few lines: make (or load) a trace, sweep, print.
"""

from remint import generators, sweep
from remint.cli.simulate import print_simulations
from remint.units import format_bytes, format_seconds

trace = generators.unet(5)
print(f"A U-Net step: {trace.num_ops} ops in {format_seconds(trace.seconds)}, peak {format_bytes(trace.peak_bytes)}.")
print("Each row: the same step, within a part of that peak, on memory with addresses.\n")
rows = sweep({"U-Net": trace}, budgets=["90%", "70%", "50%"], policies="all", memory="arena", progress=True)
print_simulations(rows)
best = min((row for row in rows if row["budget"] == "50%" and row["status"] == "ok"), key=lambda row: row["slowdown"])
print(f"\nIn half the memory, {best['policy']} takes {best['slowdown']:.2f} times as long.")
