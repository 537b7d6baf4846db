"""Recording: simulated = run, to the byte and eviction for eviction; and what else a trace of a real program has."""

import functools
import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from unittest import mock

import pytest
import torch
from torch import nn

import remint
from remint.results.block_log import BlockLog
from remint.trace import Trace
from remint.trace.events import CALL, MATERIALIZE, MUTATE
from tests.support.models import CASES, TRANSFORMERS
from tests.support.training import optimizer_for

ALL = CASES | TRANSFORMERS


def step_twice(name: str, optimizer: str, inside: remint.budget | remint.record):
    """Train for one step outside, where nothing is the first time any more, and for one step inside."""
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, loss_of = ALL[name]()
    steppable = optimizer_for(optimizer, model)

    def step() -> None:
        steppable.zero_grad()
        loss_of(model).backward()
        steppable.step()

    step()
    with inside as result:
        step()
    return result


@functools.cache
def recorded(name: str, optimizer: str = "adam"):
    return step_twice(name, optimizer, remint.record())


def simulated(trace: Trace, budget: int, policy: str) -> remint.Run:
    return remint.simulate(
        trace,
        budget=budget,
        policy=policy,
        memory="arena",
        max_slowdown=math.inf,
        events=True,
        blocks=True,
    )


def without_computing(run: remint.Run) -> list[str]:
    return [event for event in run.events if event[0] != "C"]


def assert_same(run: remint.Run, other: remint.Run) -> None:
    assert without_computing(run) == without_computing(other)
    for figure in (
        "peak_bytes",
        "num_ops",
        "num_evictions",
        "num_frees",
        "num_rematerializations",
        "num_searches",
        "moved_bytes",
    ):
        assert getattr(run, figure) == getattr(other, figure), figure
    assert run.rematerialized_seconds == pytest.approx(other.rematerialized_seconds, rel=1e-12)
    assert times_by_op(run) == times_by_op(other)
    assert_same_blocks(run.blocks, other.blocks)


def times_by_op(run: remint.Run) -> Counter[str]:
    times: Counter[str] = Counter()
    for row in run.by_op():
        times[row.name] += row.times
    return times


def assert_same_blocks(live: BlockLog, simulated: BlockLog) -> None:
    """Every block is there from the same moment to the same moment, at the same address, for the same reasons.

    What happens while the clock stands still can come in another order: which of two buffers goes first.
    """
    # The simulator says of all that is held at the end that it stays, and drops what only recipes needed; the runtime
    # does so only where something is missing.
    size = len(live)
    assert set(simulated.changes[size:]) <= {"P", "D"}
    columns = {
        name: getattr(simulated, name)[:size] for name in (f.name for f in fields(simulated)) if name != "labels"
    }
    assert drawn(live) == drawn(replace(simulated, **columns))
    assert live.marks() == simulated.marks()
    assert [name for _, name in live.marks()] == ["backward", "end of backward"] * (len(live.marks()) // 2)


def drawn(log: BlockLog) -> list[tuple]:
    with mock.patch("remint.results.block_log._spread", lambda seconds: seconds):
        found = log.rectangles()
    # Scratch goes while its op runs, or, of an output that nobody needs again, right after it.
    return sorted(
        (r.begin, r.address, r.nbytes, r.kind, *(() if r.kind == "scratch" else (r.end, r.ending, log.labels[r.label])))
        for r in found
    )


MODELS = ["mlp", "resnet", "unet", "lstm", "lstm_cell", "tree_lstm", "transformer", "gpt2_eager", "gpt2_sdpa"]


@pytest.mark.parametrize("percent", [70, 50, 35])
@pytest.mark.parametrize("policy", ["coop", "dtr-eq", "lru"])
@pytest.mark.parametrize("name", MODELS)
def test_simulated_is_run(name, policy, percent):
    recording = recorded(name)
    budget = recording.peak_bytes * percent // 100
    expected = simulated(recording.trace, budget, policy)
    inside = remint.budget(budget, policy=policy, costs=recording.trace, events=True, blocks=True)
    if expected.status == "oom":
        with pytest.raises(remint.BudgetError):
            step_twice(name, "adam", inside)
        return
    if expected.slowdown > 30:
        pytest.skip("it would take too long: without end, nearly")
    run = step_twice(name, "adam", inside).finished()
    assert run.num_rematerializations > 0
    assert_same(run, expected)


def everything_inside(inside: remint.budget | remint.record, policy_of_optimizer: str):
    """The model, its optimizer and what escapes are in the arena, too; some of it is held to the end."""
    with inside as result:
        torch.manual_seed(0)
        model, loss_of = ALL["resnet"]()
        steppable = optimizer_for(policy_of_optimizer, model)
        for _ in range(2):
            steppable.zero_grad()
            loss = loss_of(model)
            doubled = [parameter * 2 for parameter in model.parameters()]
            escaped = (torch.randn(1000, 10) * 2).relu_()
            escaped.numpy()
            filled = escaped + 1
            filled.zero_()
            filled.add_(1)
            buffer = torch.empty(5000).new_empty(7000)
            buffer.fill_(3)
            loss.backward()
            steppable.step()
            loss.item()
            filled.tolist()
        held = (doubled, buffer * 2, filled + 1)
    del held
    return result


@pytest.mark.parametrize("policy", [name for name in remint.policy_names() if name != "clairvoyant"])
@pytest.mark.parametrize("optimizer", ["adam", "adam-fused"])
def test_simulated_is_run_with_everything_inside(policy, optimizer):
    recording = everything_inside(remint.record(), optimizer)
    for percent in (80, 60):
        budget = recording.peak_bytes * percent // 100
        expected = simulated(recording.trace, budget, policy)
        assert expected.status == "ok"
        run = everything_inside(
            remint.budget(budget, policy=policy, costs=recording.trace, events=True, blocks=True), optimizer
        )
        assert run.num_rematerializations > 0
        assert_same(run.finished(), expected)


@pytest.mark.smoke
def test_without_a_budget_the_peak_is_the_recorded_one():
    recording = recorded("gpt2_sdpa" if "transformers" in sys.modules else "transformer")
    run = simulated(recording.trace, 2**34, "lru")
    assert run.peak_bytes == recording.peak_bytes
    assert run.num_rematerializations == 0


@pytest.mark.smoke
def test_what_is_recorded():
    weight, x = torch.randn(16, 16), torch.randn(256, 16)
    with remint.record(costs="measured") as recording:
        y = x @ weight
        y.relu_()
        z = torch.zeros(64)
        del y
        z.tolist()
    trace = recording.trace
    assert trace.names[0] == "memory"
    assert {"aten::mm", "aten::relu_", "aten::zero_"} <= set(trace.names)
    assert list(trace.kinds).count(MATERIALIZE) == 1
    product = next(event for event in trace.events() if getattr(event, "name", "") == "aten::mm")
    assert product.nbytes == (256 * 16 * 4,)
    assert ("allocate", 256 * 16 * 4, 0) in product.requests
    assert all(trace.nanoseconds[(trace.kinds == CALL) | (trace.kinds == MUTATE)] > 0)
    # Both names of what was written, and nothing else: `z` is still there.
    assert sum(type(event).__name__ == "Release" for event in trace.events()) >= 2
    assert trace.peak_bytes < recording.peak_bytes + 256 * 16 * 4
    assert z.sum() == 0


def test_costs_are_medians():
    x = torch.randn(64, 64)
    with remint.record() as recording:
        for _ in range(20):
            x.exp()
    trace = recording.trace
    assert len(set(trace.nanoseconds[trace.kinds == CALL].tolist())) == 1
    with pytest.raises(ValueError, match="median"):
        remint.record(costs="mean")


def test_there_is_no_trace_before_the_end(tmp_path):
    with remint.record() as recording, pytest.raises(ValueError, match="after the `with`"):
        recording.trace  # noqa: B018
    recording.save(tmp_path / "empty.trace")
    assert Trace.load(tmp_path / "empty.trace").num_ops == 0


def test_an_op_that_fails_is_not_recorded():
    with remint.record() as recording:
        with pytest.raises(RuntimeError):
            torch.ones(3, 4) @ torch.ones(3, 4)
        x = torch.ones(3) + 1
    assert "aten::mm" not in recording.trace.names
    assert simulated(recording.trace, 2**20, "coop").status == "ok"
    assert x.sum() == 6


@pytest.mark.smoke
def test_a_file_is_as_good_as_the_recording(tmp_path):
    trace = recorded("mlp").trace
    trace.save(tmp_path / "step.trace.gz")
    assert Trace.load(tmp_path / "step.trace.gz") == trace


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            x = x.tanh()  # the line
        return x


def line_of(text: str) -> str:
    with open(__file__) as file:
        return f"{__file__}:{next(number for number, line in enumerate(file, 1) if text in line)}"


def test_source_lines():
    net, x = Net(), torch.randn(512, 64)
    with remint.budget("512KiB", source_lines=True) as run:
        net(x).sum().backward()
    tanh = [row for row in run.by_op() if row.name == "aten::tanh"]
    assert [row.source for row in tanh] == [line_of("# the line")]
    assert line_of("# the line") in str(run) or len(run.by_op()) > 3
    with remint.budget("512KiB") as run:
        net(x).sum().backward()
    assert all(row.source is None and row.module is None for row in run.by_op())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(64, 64), nn.Tanh())

    def forward(self, x):
        return self.mlp(x).exp()


def test_module_paths():
    net, x = nn.Sequential(Block(), Block()), torch.randn(512, 64)
    with remint.budget("8MiB", chaos=True, source_lines=True, blocks=True) as run:
        (net(x).square() * 2).sum().backward()
    assert {row.module for row in run.by_op() if row.name == "aten::tanh"} == {
        "Sequential.0.mlp.1",
        "Sequential.1.mlp.1",
    }
    assert all(row.why for row in run.by_op())
    assert all(row.why for row in run.finished().rematerialized)
    assert f", {run.by_op()[0].module} at {run.by_op()[0].source}\n" in str(run)
    modules = {}
    for name, source in run.blocks.labels:
        modules.setdefault(name, set()).add(source.partition(" at ")[0])
    assert modules["aten::tanh_backward"] == modules["aten::tanh"], "backward has the module of its forward op"
    assert modules["aten::exp"] == {"Sequential.0", "Sequential.1"}
    assert modules["aten::pow"] == {line_of("(net(x).square() * 2)")}, "outside of all modules there is only the line"
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_module_paths_after_an_error():
    class Raises(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError

    with remint.record(source_lines=True) as recording:
        with pytest.raises(ZeroDivisionError):
            nn.Sequential(nn.Tanh(), Raises())(torch.randn(100))
        torch.randn(100).exp_()
    sources = {event.name: event.source for event in recording.trace.events() if getattr(event, "source", None)}
    assert sources["aten::tanh"].startswith("Sequential.0 at ")
    assert sources["aten::exp_"] == line_of("torch.randn(100).exp_()")


def test_source_lines_of_a_recording():
    net, x = Net(), torch.randn(512, 64)
    with remint.record(source_lines=True) as recording:
        net(x).sum().backward()
    sources: dict[str, set[str]] = {}
    for event in recording.trace.events():
        if getattr(event, "source", None):
            sources.setdefault(event.name, set()).add(event.source)
    assert sources["aten::tanh"] == {f"Net at {line_of('# the line')}"}
    assert sources["aten::tanh_backward"] == sources["aten::tanh"], "backward has the line of its forward op"
    assert all(event.source is None for event in recorded("mlp").trace.events() if hasattr(event, "source"))


def test_smallest_budget():
    recording = recorded("mlp")
    run = step_twice("mlp", "adam", remint.budget(recording.peak_bytes))
    least = run.min_budget_bytes
    assert 0 < least < recording.peak_bytes
    assert run.finished().min_budget_bytes == run.summary()["min_budget_bytes"] == least
    with pytest.raises(remint.BudgetError):
        step_twice("mlp", "adam", remint.budget(least - 64))
    with pytest.raises(remint.BudgetError) as error, remint.budget("1MiB") as run:
        torch.ones(2**20)
    assert run.min_budget_bytes == error.value.min_budget_bytes == 4 * 2**20
    assert error.value.known_budget_bytes is None


SCRIPT = """\
import sys
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
model(torch.randn(64, 32)).sum().backward()
print(sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_command_line(tmp_path, as_module):
    (tmp_path / "train.py").write_text(SCRIPT)
    script = ["-m", "train"] if as_module else ["train.py"]
    command = [sys.executable, "-m", "remint", "record", "-o", "step.trace", "--source-lines", *script, "3", "--lr"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout.strip() == "['3', '--lr']"
    assert "ops" in done.stderr
    assert "step.trace" in done.stderr
    trace = Trace.load(tmp_path / "step.trace")
    assert trace.num_ops > 8
    assert any(source.endswith("train.py:4") for source in trace.sources)
    assert json.loads((tmp_path / "step.trace").read_text().splitlines()[0])["version"] == 2
