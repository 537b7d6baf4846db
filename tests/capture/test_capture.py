from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import remint  # noqa: E402
from remint.graph import verify  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x, target=None):
        x = torch.relu(self.norm(self.conv(x)))
        x = nn.functional.max_pool2d(x, 2).flatten(1)
        logits = self.head(x)
        return logits if target is None else nn.functional.cross_entropy(logits, target)


def example():
    torch.manual_seed(0)
    return Net(), (torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,)))


def test_storages_not_tensors():
    model, args = example()
    graph = remint.capture(model, args, costs="estimate")
    names = [op.name for op in graph.ops]
    assert not any(name.startswith(("view", "t_", "getitem", "detach")) or name == "t" for name in names)
    convolution = next(op for op in graph.ops if op.name == "convolution")
    assert convolution.outputs["convolution"] == 4 * 8 * 8 * 8 * 4
    assert set(convolution.inputs) == {"input0", "conv.weight"}


def test_constants_are_parameters_buffers_and_inputs():
    model, args = example()
    graph = remint.capture(model, args, costs="estimate")
    tensors = [*model.parameters(), *model.buffers(), *args]
    assert graph.constant_bytes == sum(t.untyped_storage().nbytes() for t in tensors)


def test_gradients_of_all_parameters_are_outputs():
    model, args = example()
    graph = remint.capture(model, args, costs="estimate")
    sizes = sorted(graph.nbytes(v) for v in graph.outputs)
    for parameter in model.parameters():
        nbytes = parameter.numel() * 4
        assert nbytes in sizes
        sizes.remove(nbytes)


def test_measured_costs_are_positive_and_equal_for_equal_ops():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    graph = remint.capture(model, (torch.randn(32, 64),), loss=lambda y: y.square().mean())
    costs = {op.cost for op in graph.ops if op.name.startswith("addmm")}
    assert len(costs) == 1
    assert min(op.cost for op in graph.ops) > 0


def test_the_step_itself_is_left_alone():
    model, args = example()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    state = torch.get_rng_state()
    remint.capture(model, args)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_tied_weights_are_one_constant():
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    model[1].weight = model[0].weight
    graph = remint.capture(model, (torch.randn(2, 16),), loss=torch.sum, costs="estimate")
    assert graph.constant_bytes == 16 * 16 * 4 + 2 * 16 * 4


def test_source_lines_lead_to_the_model():
    model, args = example()
    graph = remint.capture(model, args, costs="estimate")
    convolution = next(op for op in graph.ops if op.name == "convolution")
    assert "test_capture.py" in convolution.source


def test_sources_name_the_module():
    model = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.Tanh(), nn.Linear(16, 16)))
    graph = remint.capture(model, (torch.randn(2, 16),), loss=torch.sum, costs="estimate")
    sources = {}
    for op in graph.ops:
        sources.setdefault(op.name.rstrip("_0123456789"), []).append(op.source.partition(" at ")[0])
    assert sources["addmm"] == ["Sequential.0", "Sequential.1.1"]
    assert sources["tanh"] == ["Sequential.1.0"]
    assert "Sequential" not in "".join(sources["sum"][:1]), "the loss is outside of the model"
    assert "backward of Sequential.1.0" in {source for found in sources.values() for source in found}


def test_a_loss_must_be_scalar():
    model, args = example()
    with pytest.raises(ValueError, match="needs a scalar loss"):
        remint.capture(model, args[:1])
    with pytest.raises(ValueError, match='"measure" or "estimate"'):
        remint.capture(model, args, costs="guess")


def test_a_captured_graph_can_be_planned():
    model, args = example()
    graph = remint.capture(model, args, costs="estimate")
    budget = (graph.min_budget_bytes + graph.peak_bytes) // 2
    verify(graph, remint.plan(graph, budget, time_limit=5), budget)


def test_capture_knows_no_planner():
    package = Path(remint.__file__).parent / "capture"
    for path in package.glob("*.py"):
        assert "planners" not in path.read_text(), path
