"""The traces that benchmarks run on: DTR's own, where they lie beside the project, and generated ones."""

from __future__ import annotations

from pathlib import Path

from remint import Trace, generators

DATA = Path(__file__).resolve().parents[2] / "shared" / "dtr"


def all_traces() -> dict[str, Trace]:
    """Return every trace by name."""
    return dtr_traces() | generated_traces()


def dtr_traces() -> dict[str, Trace]:
    """Return the traces of DTR's authors, if they are there."""
    if not DATA.is_dir():
        print(f"no DTR traces at {DATA}: others only\n")
        return {}
    names = ("resnet32", "transformer", "unet", "lstm")
    return {f"{name} (DTR)": Trace.from_dtr_log(DATA / f"{name}.log.gz") for name in names}


def generated_traces() -> dict[str, Trace]:
    """Return one trace of every generator."""
    return {
        "chain": generators.chain(64),
        "residual": generators.residual(24),
        "unet": generators.unet(5),
        "tree": generators.tree(6),
        "rnn": generators.rnn(60),
        "random": generators.random_dag(600, seed=2),
    }
