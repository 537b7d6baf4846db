"""Random legal traces, for tests that hold for all of them."""

from __future__ import annotations

from hypothesis import strategies as st

from remint.trace import Trace, TraceBuilder
from remint.trace.events import Request

NAMES = st.sampled_from(["conv", "relu_", "t", 'naïve \n"quoted"'])
SOURCES = st.none() | st.sampled_from(["net.py:12", "net.py:13", "C:\\net.py:1"])
BYTES = st.integers(0, 1000)
SECONDS = st.integers(0, 10**10).map(lambda nanoseconds: nanoseconds / 1e9)


@st.composite
def traces(draw: st.DrawFn, max_events: int = 40) -> Trace:
    builder = TraceBuilder()
    live: list[int] = []
    for _ in range(draw(st.integers(0, max_events))):
        kinds = ["constant", "call", "mark"] + (["call", "call", "view", "mutate", "release"] if live else [])
        kind = draw(st.sampled_from(kinds))
        name = draw(NAMES)
        args = draw(st.lists(st.sampled_from(live), max_size=4)) if live else []
        if kind == "constant":
            live.append(builder.constant(draw(BYTES), name))
        elif kind == "mark":
            builder.mark(name)
        elif kind == "release":
            builder.release(live.pop(draw(st.integers(0, len(live) - 1))))
        elif kind == "mutate":
            args = args or live[:1]
            mutated = draw(st.lists(st.integers(0, len(args) - 1), min_size=1, max_size=2, unique=True))
            requests = draw(_requests([]))
            live += builder.mutate(name, args, mutated, draw(SECONDS), source=draw(SOURCES), requests=requests)
        elif kind == "view":
            live.append(builder.view(name, draw(st.sampled_from(live)), draw(SECONDS), source=draw(SOURCES)))
        else:
            aliases = draw(st.lists(st.integers(-1, len(args) - 1), max_size=3))
            nbytes = [draw(BYTES) if alias < 0 else 0 for alias in aliases]
            fresh = [(output, size) for output, size in enumerate(nbytes) if aliases[output] < 0]
            live += builder.call(
                name,
                args,
                nbytes,
                draw(SECONDS),
                aliases=aliases,
                source=draw(SOURCES),
                requests=draw(st.none() | _requests(fresh)),
            )
    if draw(st.booleans()):
        return builder.build()
    held = draw(st.permutations(live))
    return builder.build(held[: draw(st.integers(0, len(held)))])


@st.composite
def _requests(draw: st.DrawFn, fresh: list[tuple[int, int]]) -> list[Request]:
    requests: list[Request] = []
    scratch: list[int] = []
    num_allocations = 0
    left = draw(st.permutations(fresh))
    for _ in range(draw(st.integers(0, 4))):
        if scratch and draw(st.booleans()):
            requests.append(("free", scratch.pop(draw(st.integers(0, len(scratch) - 1)))))
        elif left and draw(st.booleans()):
            output, nbytes = left.pop()
            requests.append(("allocate", nbytes + draw(BYTES), output))
            num_allocations += 1
        else:
            requests.append(("allocate", draw(BYTES)))
            scratch.append(num_allocations)
            num_allocations += 1
    return [*requests, *(("allocate", nbytes, output) for output, nbytes in left)]


@st.composite
def steps(draw: st.DrawFn, max_events: int = 30) -> Trace:
    """Return a step as the runtime records it: constants first, ops in place, outputs that can be made once."""
    builder = TraceBuilder()
    live: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        where = draw(st.sampled_from(["arena", "kept", "elsewhere"]))
        live.append(builder.constant(draw(BYTES), "constant", where=where))
    for _ in range(draw(st.integers(1, max_events))):
        kind = draw(st.sampled_from(["call"] * 6 + ["mutate", "mutate", "release", "release", "materialize"]))
        if not live and kind != "call":
            continue
        args = draw(st.lists(st.sampled_from(live), max_size=3, unique=True)) if live else []
        seconds = draw(st.integers(1, 100)) / 1e6
        if kind == "release":
            builder.release(live.pop(draw(st.integers(0, len(live) - 1))))
        elif kind == "materialize":
            builder.materialize(draw(st.sampled_from(live)))
        elif kind == "mutate":
            args = args or live[:1]
            overwritten = [0] if draw(st.integers(0, 4)) == 0 else []
            live += builder.mutate("mutate", args, [0], seconds, overwritten=overwritten, requests=_scratch(draw, []))
        else:
            nbytes = draw(st.lists(BYTES, min_size=1, max_size=2))
            once = [0] if draw(st.integers(0, 9)) == 0 else []
            requests = _scratch(draw, nbytes)
            live += builder.call("call", args, nbytes, seconds, requests=requests, once=once)
    return builder.build()


def _scratch(draw: st.DrawFn, outputs: list[int]) -> list[Request]:
    """Scratch that is freed before, between or after the outputs are asked for."""
    requests: list[Request] = []
    if draw(st.booleans()):
        requests = [("allocate", draw(BYTES))]
        if draw(st.booleans()):
            requests.append(("free", 0))
    return [*requests, *(("allocate", nbytes, output) for output, nbytes in enumerate(outputs))]
