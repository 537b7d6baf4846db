"""What the compiled path promises beside bits and peaks, rule by rule."""

import copy
import gc
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import remint
from remint.compiled.cache import Cache
from remint.compiled.joint_split import EARLIER, TURN, saved_bytes_of
from remint.compiled.lowering import _Writer
from remint.graph import Plan
from remint.planners import planning
from remint.planners.contract import Outcome
from tests.support.stepping import measured, step, train

QUICK = {"planner": "search", "time_limit": 5, "costs": "estimate", "cache": False, "progress": False}


def tower(layers=8, width=32, dropout=0.0):
    parts = [[nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout)] for _ in range(layers)]
    return nn.Sequential(*(part for parts in parts for part in parts), nn.Linear(width, 1))


def grads(model):
    return [p.grad.clone() for p in model.parameters()]


def pair(model):
    return model, copy.deepcopy(model)


def assert_alike(model, other, loss, loss_of_other):
    torch.manual_seed(3)
    a = loss(model)
    a.backward()
    torch.manual_seed(3)
    b = loss_of_other(other)
    b.backward()
    assert torch.equal(a, b)
    assert all(map(torch.equal, grads(model), grads(other)))
    assert all(map(torch.equal, model.buffers(), other.buffers()))


@pytest.mark.smoke
def test_the_backend_is_found_by_its_name():
    model, other = pair(tower())
    x = torch.randn(256, 32)
    planned = torch.compile(other, backend="remint", options={"budget": "70%", **QUICK})
    assert_alike(model, other, lambda m: m(x).square().mean(), lambda _: planned(x).square().mean())


def test_loss_outside_and_inside_the_module():
    x = torch.randn(256, 32)
    outside = remint.compile(tower(), budget="70%", **QUICK)
    outside(x).square().mean().backward()
    inside = remint.compile(lambda m: m(x).square().mean(), budget="70%", **QUICK)
    inside(tower()).backward()
    for compiled in (outside, inside):
        assert len(compiled.remint_plan) == 1
        assert 0 < compiled.remint_plan.overhead < 1
        assert "plan" in str(compiled.remint_plan)
        assert "rematerialized" in compiled.remint_plan.explain()


@pytest.mark.smoke
def test_an_op_can_run_many_times():
    """Nothing is kept: every reader makes what it reads from the inputs on."""
    model, other = pair(tower(6, dropout=0.2))
    x = torch.randn(64, 32)
    planned = remint.compile(other, budget="100%", **{**QUICK, "planner": "drop"})
    assert_alike(model, other, lambda m: m(x).square().mean(), lambda _: planned(x).square().mean())
    (plan,) = planned.remint_plan
    assert max(plan.sequence.count(index) for index in range(len(plan.graph.ops))) > 2


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_rematerialization_at_a_chosen_place(where, monkeypatch):
    """The same op once more right before the turn, or twice in the backward, and dropped in between."""
    torch.manual_seed(0)
    model, other = pair(tower(3, dropout=0.5))
    x = torch.randn(64, 32)

    def again(task):
        ops = task.graph.ops
        turn = [op.name for op in ops].index(TURN)
        draws = [i for i in range(turn) if ops[i].name.startswith("native_dropout") and ops[i].rematerializable]
        # What these ops read must be there, so all of the forward up to the last of them runs again.
        needed = [i for i in range(draws[-1] + 1) if ops[i].rematerializable]
        sequence = list(range(len(ops)))
        place = turn if where == "forward" else turn + 1
        sequence[place:place] = needed * (1 if where == "forward" else 2)
        return Outcome(tuple(sequence))

    monkeypatch.setattr(planning, "PLANNERS", {**planning.PLANNERS, "search": again})
    planned = remint.compile(other, budget="400%", **QUICK)
    assert_alike(model, other, lambda m: m(x).square().mean(), lambda _: planned(x).square().mean())
    (plan,) = planned.remint_plan
    assert len(plan.sequence) > len(plan.graph.ops)


def test_the_generator_is_where_it_would_be():
    x = torch.randn(64, 32)
    model, other = pair(tower(6, dropout=0.3))
    planned = remint.compile(other, budget="60%", **QUICK)
    torch.manual_seed(5)
    model(x).square().mean().backward()
    expected = torch.rand(4)
    torch.manual_seed(5)
    planned(x).square().mean().backward()
    assert torch.equal(expected, torch.rand(4))


class Counting(nn.Module):
    """Its buffer is read, then written: what was read must not be made again from what was written."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.register_buffer("shift", torch.zeros(32))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(torch.tanh(x + self.shift)))
        self.shift.add_(1.0)
        return x


@pytest.mark.smoke
def test_written_buffers_are_written_once_and_read_as_they_were():
    model, other = pair(Counting())
    x = torch.randn(256, 32)
    planned = remint.compile(other, budget="75%", **QUICK)
    for number in range(1, 3):
        for m in (model, other):
            m.zero_grad()
        assert_alike(model, other, lambda m: m(x).square().mean(), lambda _: planned(x).square().mean())
        assert torch.equal(other.shift, torch.full((32,), float(number)))
    assert planned.remint_plan.overhead > 0


@pytest.mark.smoke
def test_views_and_aliased_outputs():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = tower(6)[:-1]

        def forward(self, x):
            y = self.layers(x)
            return y, y.view(-1), y[:3], x

    model, other = pair(Views())
    x = torch.randn(256, 32)
    planned = remint.compile(other, budget="90%", **QUICK)
    expected, found = model(x), planned(x)
    assert all(map(torch.equal, expected, found))
    assert found[1].untyped_storage().data_ptr() == found[0].untyped_storage().data_ptr()
    assert found[3] is x
    sum(t.square().sum() for t in expected[:3]).backward()
    sum(t.square().sum() for t in found[:3]).backward()
    assert all(map(torch.equal, grads(model), grads(other)))


def test_inference_runs_unplanned_and_new_shapes_are_planned_anew():
    model = tower()
    planned = remint.compile(model, budget="75%", **QUICK)
    with torch.no_grad():
        planned(torch.randn(16, 32))
    assert len(planned.remint_plan) == 0
    for batch in (128, 160):
        planned(torch.randn(batch, 32)).square().mean().backward()
    assert len(planned.remint_plan) == 2
    # Also where torch.compile would have made the batch a symbol.
    torch._dynamo.reset()
    options = {"budget": "75%", **QUICK}
    backend = torch.compile(model, backend="remint", options=options)
    for batch in (128, 160, 192):
        backend(torch.randn(batch, 32)).square().mean().backward()
    from remint.compiled.backend import _compilations

    sizes = {graph.plan.graph.peak_bytes for graph in _compilations[id(options)][1].graphs}
    assert len(sizes) == 3


def test_a_budget_that_cannot_be_held_is_refused_with_one_that_can():
    x = torch.randn(512, 32)
    with pytest.raises(remint.BudgetError, match="smallest budget with a known plan") as caught:
        torch.compile(tower(), backend="remint", options={"budget": "50KiB", **QUICK})(x)
    known = caught.value.known_budget_bytes
    assert caught.value.min_budget_bytes <= known
    torch._dynamo.reset()
    planned = remint.compile(tower(), budget=known, **{**QUICK, "planner": "auto"})
    planned(x).square().mean().backward()
    assert planned.remint_plan.peak_bytes <= known


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a budget"),
        ({"budget": "5 apples"}, "not understood"),
        ({"budget": 0}, "holds nothing"),
        ({"budget": "1MiB", "planer": "auto"}, "no option 'planer'"),
        ({"budget": "1MiB", "planner": "best"}, "planner is one of"),
        ({"budget": "1MiB", "costs": "guess"}, "costs is one of"),
        ({"budget": "1MiB", "inner": "gcc"}, "inner is one of"),
        ({"budget": "1MiB", "time_limit": -1}, "time_limit is a number of seconds"),
        ({"budget": "1MiB", "cache": 3}, "cache is a directory"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        torch.compile(tower(2), backend="remint", options=options)(torch.randn(4, 32))


def test_parameters_count_if_asked_for():
    x = torch.randn(64, 32)
    model = tower()
    plain = remint.compile(model, budget="100%", **QUICK)
    plain(x).square().mean().backward()
    torch._dynamo.reset()
    counted = remint.compile(model, budget="100%", include_parameters=True, **QUICK)
    counted(x).square().mean().backward()
    more = counted.remint_plan[0].graph.peak_bytes - plain.remint_plan[0].graph.peak_bytes
    assert more == sum(p.nbytes for p in model.parameters()) + x.nbytes


def test_plans_and_costs_are_kept(tmp_path, monkeypatch):
    options = {**QUICK, "costs": "measure", "cache": tmp_path}
    x = torch.randn(128, 32)
    first = remint.compile(tower(), budget="75%", **options)
    first(x).square().mean().backward()
    torch._dynamo.reset()

    def nothing(*_args, **_kwargs):
        raise AssertionError("planned or measured again")

    monkeypatch.setattr("remint.planners.plan", nothing)
    monkeypatch.setattr("remint.capture.costs._time", nothing)
    second = remint.compile(tower(), budget="75%", **options)
    second(x).square().mean().backward()
    assert second.remint_plan[0].sequence == first.remint_plan[0].sequence
    torch._dynamo.reset()
    with pytest.raises(Exception, match="planned or measured again"):
        remint.compile(tower(), budget="74%", **options)(x)


def test_a_damaged_cache_is_ignored(tmp_path):
    cache = Cache(tmp_path)
    graph = remint.Graph((remint.Op("a", 1.0, (), {"a": 8}),), {}, ("a",))
    plan = Plan.from_sequence(graph, [0])
    cache.keep_plan(plan, 8, ("keep",))
    assert cache.plan(graph, 8, ("keep",)).sequence == (0,)
    (file,) = tmp_path.glob("*.plan")
    file.write_text(json.dumps({"format": "remint.plan", "version": 1}))
    assert cache.plan(graph, 8, ("keep",)) is None
    file.write_text("not json")
    assert cache.plan(graph, 8, ("keep",)) is None


class Broken(nn.Module):
    """Four graphs; the last one reads what the first one made. (In a loop, a break would be one of the whole frame.)"""

    def __init__(self, sizes):
        super().__init__()
        self.parts = nn.ModuleList(tower(layers)[:-1] for layers in sizes)

    def forward(self, x):
        x = first = self.parts[0](x)
        torch._dynamo.graph_break()
        x = self.parts[1](x)
        torch._dynamo.graph_break()
        x = self.parts[2](x)
        torch._dynamo.graph_break()
        return (self.parts[3](x) + first).square().mean()


@pytest.mark.parametrize("percent", [70, 50])
@pytest.mark.parametrize("sizes", [(5, 5, 5, 5), (2, 9, 5, 1)])
def test_graph_breaks_share_the_budget(sizes, percent):
    model, other = pair(Broken(sizes))
    x = torch.randn(512, 32)
    _, peak = measured(lambda: model(x).backward())
    model.zero_grad()
    budget = peak * percent // 100
    # Nothing is measured or kept, which would happen in the middle of the first step.
    planned = remint.compile(other, budget=budget, **{**QUICK, "time_limit": 0.5})
    expected = train(model, lambda: model(x), steps=3)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.01, momentum=0.9)
    for number in range(3):
        optimizer.zero_grad()
        loss, peak = measured(lambda: step(lambda: planned(x)))
        optimizer.step()
        assert 0.6 * budget < peak <= budget, number
        assert torch.equal(loss, expected.losses[number])
    assert all(map(torch.equal, other.parameters(), (expected.state[k] for k, _ in other.named_parameters())))
    plans = list(planned.remint_plan)
    assert len(plans) == len(sizes)
    # Each plan knows what those before it keep.
    saved = [saved_bytes_of(plan) for plan in plans]
    assert [plan.graph.constants[EARLIER] for plan in plans] == [sum(saved[:place]) for place in range(len(plans))]
    assert planned.remint_plan.peak_bytes <= budget


def test_without_pressure_graph_breaks_cost_nothing():
    """The first step leaves space for what it does not know of; from the second on nothing runs twice."""
    planned = remint.compile(Broken((4, 4, 4, 4)), budget="1GiB", **{**QUICK, "time_limit": 0.5})
    x = torch.randn(512, 32)
    for _ in range(2):
        planned(x).backward()
    assert len(planned.remint_plan) == 4
    assert planned.remint_plan.overhead == 0


def test_values_are_gone_when_the_step_is():
    x = torch.randn(256, 32)
    planned = remint.compile(tower(), budget="75%", **QUICK)
    planned(x).square().mean().backward()
    gc.collect()
    before = sum(t.untyped_storage().nbytes() for t in gc.get_objects() if type(t) is torch.Tensor)
    planned(x).square().mean().backward()
    gc.collect()
    assert sum(t.untyped_storage().nbytes() for t in gc.get_objects() if type(t) is torch.Tensor) == before


def test_an_interrupted_solve_goes_on_with_the_best_plan():
    """In a process of its own: Ctrl-C while auto is proving."""
    code = """
import os, signal, threading, time, torch, remint
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(16)))
planned = remint.compile(model, budget="60%", time_limit=300, costs="estimate", cache=False)
began = time.monotonic()
from remint.compiled import planning
printed = planning._Printer.__call__
def interrupt(self, progress):
    if progress.cost is not None:
        planning._Printer.__call__ = printed
        os.kill(os.getpid(), signal.SIGINT)
planning._Printer.__call__ = interrupt
planned(torch.randn(256, 32)).square().mean().backward()
print(len(planned.remint_plan), time.monotonic() - began < 200)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert done.stdout.split() == ["1", "True"], done.stderr[-2000:]


def test_inductor_saves_what_the_plan_says():
    model, other = pair(tower(8))
    x = torch.randn(512, 32)
    planned = remint.compile(other, budget="70%", inner="inductor", **QUICK)
    loss = planned(x)
    saved = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in loss.grad_fn.saved_tensors
        if t.untyped_storage().data_ptr() not in {p.data_ptr() for p in (*other.parameters(), x)}
    }
    assert sum(saved.values()) + loss.nbytes <= planned.remint_plan.saved_bytes + 64
    loss.square().mean().backward()
    model(x).square().mean().backward()
    for a, b in zip(grads(model), grads(other), strict=True):
        torch.testing.assert_close(a, b)


def test_an_input_is_not_called_by_the_name_of_another_node():
    """Generated code takes arguments by their targets, then renames them: one would overwrite the other."""
    joint = torch.fx.Graph()
    first, second = joint.placeholder("a"), joint.placeholder("a_1")
    training = SimpleNamespace(
        joint=SimpleNamespace(module=SimpleNamespace(graph=joint)), storages=SimpleNamespace(made={})
    )
    planned = SimpleNamespace(ops=())
    writer = _Writer(training, planned, set(), None, set(), lambda key: pytest.fail(f"{key} is there"))
    start = writer.graph.placeholder("tangents")
    writer.graph.create_node("call_function", torch.neg, (start,), name="a")
    with writer.graph.inserting_before(start):
        nodes = [writer.placeholder(first), writer.placeholder(second)]
    writer.graph.output(tuple(nodes))
    found = torch.fx.GraphModule(nn.Module(), writer.graph)(1.0, 2.0, torch.zeros(1))
    assert nodes[0].name == "a_1"  # as "a" is taken
    assert found == (1.0, 2.0)
    assert all(node.target == node.name for node in nodes)


def test_a_copy_is_compiled_by_itself():
    model, x = tower(), torch.randn(64, 32)
    expected = copy.deepcopy(model)
    compiled = remint.compile(model, budget="75%", **QUICK)
    compiled(x).sum().backward()
    copied = copy.deepcopy(compiled)
    assert not len(copied.remint_plan)
    copied.zero_grad()
    for net in (copied, expected):
        net(x).sum().backward()
    assert all(map(torch.equal, grads(copied), grads(expected)))
    assert len(copied.remint_plan) == 1
    peaks = copied.remint_plan.peak_bytes, compiled.remint_plan.peak_bytes, copied.remint_plan[0].graph.peak_bytes
    assert peaks[0] == peaks[1] < peaks[2]
    with torch.no_grad():
        next(copied.parameters()).zero_()
    assert torch.equal(next(model.parameters()), next(expected.parameters()))
