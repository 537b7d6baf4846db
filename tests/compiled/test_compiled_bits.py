"""At 70, 50 and 35% of the peak: the numbers of aot_eager, the predicted peak, and never more than the budget."""

import functools

import pytest
import torch

import remint
from tests.support.models import CASES, TRANSFORMERS
from tests.support.stepping import Trained, assert_same_bits, train

ALL = CASES | TRANSFORMERS
# nn.LSTM and the tree are not captured by dynamo; an LSTM cell by cell has no plan at 35%.
NAMES = [name for name in ALL if name not in ("lstm", "lstm_cell", "tree_lstm", "gpt2_eager")]


def case(name: str):
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, loss_of = ALL[name]()
    if name.startswith("gpt2"):
        model.loss_type = "ForCausalLM"  # otherwise it logs, which is a graph break
    return model, functools.partial(loss_of, model)


@functools.cache
def reference(name: str) -> Trained:
    model, loss_of = case(name)
    return train(model, torch.compile(loss_of, backend="aot_eager"))


def planned_training(name: str, percent: int, cache, **options):
    torch._dynamo.reset()
    model, loss_of = case(name)
    planned = remint.compile(
        loss_of, budget=f"{percent}%", cache=cache, progress=False, fullgraph=True, fallback=False, **options
    )
    return planned, train(model, planned)


@pytest.mark.parametrize("percent", [70, 50, 35])
@pytest.mark.parametrize("name", NAMES)
def test_same_bits_predicted_peak_inside_the_budget(name, percent, cache):
    expected = reference(name)
    try:
        planned, found = planned_training(name, percent, cache, planner="search", time_limit=2)
    except remint.BudgetError:  # two seconds are little on a busy machine
        planned, found = planned_training(name, percent, cache, planner="auto", time_limit=30)
    assert_same_bits(expected, found)
    *_, plan = planned.remint_plan  # a profiler that is switched on can be a reason to compile anew
    budget = plan.graph.peak_bytes * percent // 100
    assert plan.overhead > 0
    assert found.peak_bytes <= budget
    assert 0.97 * plan.peak_bytes < found.peak_bytes <= 1.03 * plan.peak_bytes
