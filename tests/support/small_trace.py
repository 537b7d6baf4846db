"""A trace with one event of each kind: as a trace, as events and as a file."""

from __future__ import annotations

from remint.trace import Trace, TraceBuilder
from remint.trace.events import Call, Constant, Mark, Mutate, Release, View


def small() -> Trace:
    """One event of each kind, and then some."""
    builder = TraceBuilder()
    weight = builder.constant(4096, "weight")
    (activation,) = builder.call("conv", [weight], [65536], 0.0025, source="net.py:12")
    flat = builder.view("flatten", activation, 1e-6)
    (positive,) = builder.mutate("relu_", [flat, activation], [1], 1e-4)
    builder.release(activation)
    builder.mark("backward")
    builder.call(
        "split",
        [positive],
        [0, 128],
        0.001,
        aliases=[0, -1],
        source="net.py:13",
        requests=[("allocate", 512), ("allocate", 256, 1), ("free", 0)],
    )
    return builder.build()


EVENTS = [
    Constant(0, 4096, "weight"),
    Call("conv", (0,), (1,), (65536,), (-1,), 0.0025, "net.py:12"),
    View("flatten", (1,), (2,), (0,), 1e-6),
    Mutate("relu_", (2, 1), (3,), (65536,), (1,), 1e-4),
    Release(1),
    Mark("backward"),
    Call(
        "split",
        (3,),
        (4, 5),
        (0, 128),
        (0, -1),
        0.001,
        "net.py:13",
        (("allocate", 512), ("allocate", 256, 1), ("free", 0)),
    ),
]

LINES = """\
{"format": "remint-trace", "version": 2}
{"event": "constant", "name": "weight", "outputs": [0], "bytes": [4096]}
{"event": "call", "name": "conv", "args": [0], "outputs": [1], "bytes": [65536], "seconds": 0.0025, "source": "net.py:12"}
{"event": "view", "name": "flatten", "args": [1], "outputs": [2], "aliases": [0], "seconds": 1e-06}
{"event": "mutate", "name": "relu_", "args": [2, 1], "outputs": [3], "mutated": [1], "seconds": 0.0001}
{"event": "release", "tensor": 1}
{"event": "mark", "name": "backward"}
{"event": "call", "name": "split", "args": [3], "outputs": [4, 5], "bytes": [0, 128], "aliases": [0, -1], \
"seconds": 0.001, "source": "net.py:13", "requests": [["allocate", 512], ["allocate", 256, 1], ["free", 0]]}
{"event": "end", "events": 7}
"""  # noqa: E501
