"""Steps of several graphs: a percentage is of the whole step, and all graphs together stay inside the budget."""

import copy
import functools
import itertools
import os
import random
import subprocess
import sys

import pytest
import torch
from torch import nn

import remint
from remint import planners
from tests.support.stepping import Trained, assert_same_bits, train

QUICK = {"planner": "search", "time_limit": 2, "costs": "estimate", "cache": False, "progress": False}


def segformer():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_labels=8,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 40, 64],
        num_attention_heads=[1, 2, 5, 8],
        decoder_hidden_size=64,
    )
    x, labels = torch.randn(2, 3, 64, 64), torch.randint(0, 8, (2, 64, 64))
    return SegformerForSemanticSegmentation(config), lambda model: model(pixel_values=x, labels=labels).loss


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=128,
        use_cache=False,
    )
    tokens = torch.randint(0, 256, (4, 64))
    return MixtralForCausalLM(config), lambda model: model(input_ids=tokens, labels=tokens).loss


def trained(make, compile_model, *, steps=3) -> tuple[object, Trained]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, loss_of = make()
    compiled = compile_model(model)
    return compiled, train(model, functools.partial(loss_of, compiled), steps=steps)


def test_sixty_percent_of_a_model_with_graph_breaks():
    pytest.importorskip("transformers")
    make = segformer
    _, expected = trained(make, lambda model: torch.compile(model, backend="aot_eager"))
    planned, found = trained(make, lambda model: remint.compile(model, budget="60%", **QUICK))
    assert_same_bits(expected, found)
    plans = planned.remint_plan
    assert len(plans) > 1
    assert plans.overhead > 0
    assert plans.peak_bytes <= plans.unplanned_peak_bytes * 60 // 100
    # Not 60%: estimated costs count no workspaces, which differ from processor to processor.
    assert found.peak_bytes < expected.peak_bytes


FSDP = """
import sys, torch, torch.distributed as dist, torch._dynamo
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 128), nn.Linear(128, 32)
    def forward(self, x):
        return torch.tanh(self.b(nn.functional.gelu(self.a(x)))) + x

rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
mesh = init_device_mesh("cpu", (size,))

def train(**how):
    torch._dynamo.reset()
    torch.manual_seed(0)
    blocks = [Block() for _ in range(4)]
    model = nn.Sequential(*blocks)
    for block in blocks:
        block.compile(**how)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(256, 32)
    losses = []
    for _ in range(3):
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [p.to_local().clone() for p in model.parameters()]

options = dict(budget="50%", planner="search", time_limit=2, costs="estimate", cache=False, progress=False)
expected, found = train(backend="aot_eager"), train(backend="remint", options=options)
assert expected[0] == found[0] and all(map(torch.equal, expected[1], found[1]))
from remint.compiled.backend import _compilations
(step,) = _compilations[id(options)][1].known_steps
print(len(step.plans), step.peak_bytes, step.unplanned_peak_bytes)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [1, 2])
def test_half_of_blocks_that_fsdp_shards(size, tmp_path):
    """Blocks that share their options share one budget; the same graph runs once per block."""
    command = [sys.executable, "-c", FSDP]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    try:
        results = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, results, strict=True):
        assert process.returncode == 0, err[-2000:]
        runs, peak, unplanned = map(int, out.split())
        assert runs == 4
        assert peak <= unplanned // 2


class Link(nn.Module):
    """A block, a graph break, and what follows."""

    def __init__(self, widths: list[int], rest: nn.Module | None):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, 32)) for width in widths]
        self.block = nn.Sequential(*layers)
        self.rest = rest

    def forward(self, x):
        x = self.block(x) + x
        if self.rest is None:
            return x.square().mean()
        torch._dynamo.graph_break()
        return self.rest(x)


def random_chain(seed: int) -> nn.Module:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    chain = None
    for _ in range(draw.randint(2, 5)):
        chain = Link([draw.choice((16, 32, 64, 96)) for _ in range(draw.randint(1, 4))], chain)
    return chain


def least_budget(model: nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """Ask for too little, and return the budget that the error names, and the peak that was planned without one."""
    torch._dynamo.reset()
    planned = remint.compile(copy.deepcopy(model), budget="5%", fallback=False, **QUICK)
    with pytest.raises(remint.BudgetError, match="smallest budget with a known plan") as caught:
        planned(x).backward()
    assert caught.value.min_budget_bytes <= caught.value.known_budget_bytes
    # The step is refused again.
    with pytest.raises(remint.BudgetError):
        planned(x).backward()
    torch._dynamo.reset()
    free = remint.compile(copy.deepcopy(model), budget="1TiB", **QUICK)
    for _ in range(2):
        free(x).backward()
    assert free.remint_plan.overhead == 0
    return caught.value.known_budget_bytes, free.remint_plan.unplanned_peak_bytes


@pytest.mark.parametrize("seed", range(4))
def test_every_budget_from_the_least_one_on_holds(seed):
    x = torch.randn(256, 32)
    model = random_chain(seed)
    reference = copy.deepcopy(model)
    expected = train(reference, lambda: reference(x), steps=3)
    least, most = least_budget(model, x)
    assert least < most
    costs = []
    for part in (0.0, 0.1, 0.3, 0.6, 1.0):
        budget = least + int(part * (most - least))
        torch._dynamo.reset()
        other = copy.deepcopy(model)
        planned = remint.compile(other, budget=budget, **QUICK)
        found = train(other, lambda planned=planned: planned(x), steps=3)
        assert_same_bits(expected, found)
        plans = planned.remint_plan
        assert plans.peak_bytes <= budget
        assert found.peak_bytes <= budget
        # A plan counts what a graph returns until its backward ends; nobody may hold it for so long.
        assert found.peak_bytes > 0.75 * plans.peak_bytes
        costs.append(plans.cost)
    assert plans.overhead == 0
    for tighter, looser in itertools.pairwise(costs):
        assert looser <= tighter * 1.005


@pytest.mark.parametrize("budget", ["80%", "65%", "50%"])
def test_a_percentage_is_one_of_the_step(budget):
    x = torch.randn(256, 32)
    model = Link([64] * 4, Link([32] * 3, Link([96, 16, 64, 64], None)))
    reference = copy.deepcopy(model)
    expected = train(reference, lambda: reference(x), steps=3)
    planned = remint.compile(model, budget=budget, **QUICK)
    found = train(model, lambda: planned(x), steps=3)
    assert_same_bits(expected, found)
    plans = planned.remint_plan
    assert len(plans) == 3
    assert found.peak_bytes <= plans.unplanned_peak_bytes * int(budget[:-1]) // 100
    assert plans.overhead > 0


def test_a_graph_that_runs_often_has_a_plan_for_each_time():
    """One block, compiled once, runs four times with different parameters: the first have less memory than the last."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(Link([64, 64], None) for _ in range(4))
    options = {"budget": "55%", **QUICK}
    for block in blocks:
        block.forward = functools.partial(_residual, block)
        block.compile(backend="remint", options=options)
    other = copy.deepcopy(blocks)
    x = torch.randn(256, 32)

    def loss_of(blocks, call):
        y = x
        for block in blocks:
            y = call(block, y)
        return y.square().mean()

    expected = train(other, lambda: loss_of(other, lambda block, y: _residual(block, y)), steps=3)
    found = train(blocks, lambda: loss_of(blocks, lambda block, y: block(y)), steps=3)
    assert_same_bits(expected, found)
    from remint.compiled.backend import _compilations

    compilation = _compilations[id(options)][1]
    (planned,) = compilation.known_steps
    assert len(compilation.graphs) < len(planned.plans) == 4
    assert planned.peak_bytes <= planned.unplanned_peak_bytes * 55 // 100


def _residual(block, x):
    return block.block(x) + x


def test_another_order_of_graphs_is_another_step():
    torch.manual_seed(0)
    long = Link([64], Link([64], Link([64], None)))
    options = {"budget": "90%", **QUICK}
    model = torch.compile(long, backend="remint", options=options)
    short = torch.compile(long.rest, backend="remint", options=options)
    x = torch.randn(256, 32)
    for _ in range(2):
        for forward in (model, short):
            forward(x).backward()
    model(x)
    from remint.compiled.backend import _compilations

    assert sorted(len(step.plans) for step in _compilations[id(options)][1].known_steps) == [2, 3]


def test_a_step_ends_though_an_older_one_is_held_forever():
    torch.manual_seed(0)
    planned = remint.compile(Link([64], Link([64, 64], None)), budget="85%", **QUICK)
    x = torch.randn(256, 32)
    held = planned(x)
    for _ in range(3):
        planned(x).backward()
    assert [len(step.plans) for step in planned.remint_plan._compilation.known_steps] == [2]
    held.backward()


def test_a_budget_that_no_plan_holds_is_solved_once(monkeypatch):
    asked = []
    plan = planners.plan
    monkeypatch.setattr(planners, "plan", lambda *args, **kwargs: asked.append(args[1]) or plan(*args, **kwargs))
    with pytest.raises(remint.BudgetError):
        remint.compile(Link([64], None), budget="30KiB", fallback=False, **QUICK)(torch.randn(256, 32))
    assert len(asked) == 1


def test_plans_of_another_device_or_torch_are_not_taken(tmp_path, monkeypatch):
    x = torch.randn(128, 32)

    def compiled():
        torch._dynamo.reset()
        torch.manual_seed(0)
        remint.compile(Link([64, 64], None), budget="80%", **{**QUICK, "cache": tmp_path})(x)
        return len(list(tmp_path.glob("*.plan")))

    assert compiled() == 1
    assert compiled() == 1
    monkeypatch.setattr("remint.compiled.cache.devices", lambda: ["cpu", "another:0 of its kind"])
    assert compiled() == 2
    monkeypatch.setattr(torch, "__version__", "2.99")
    assert compiled() == 3
