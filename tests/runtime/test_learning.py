"""Learned steps: the same bits, less recomputation, and a sound way out where the program departs."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import remint

pytestmark = pytest.mark.runtime
# Costs that do not depend on the clock, so that every run decides the same.
COSTS = [1e-4] * 200_000


class Skips(nn.Module):
    """A small U-shaped network: its early activations are used late."""

    def __init__(self, width=32, depth=4, dropout=0.0):
        super().__init__()
        self.down = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        self.up = nn.ModuleList(nn.Sequential(nn.Linear(2 * width, width), nn.GELU()) for _ in range(depth))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = self.dropout(block(x))
            skips.append(x)
        for block in self.up:
            x = block(torch.cat([x, skips.pop()], 1))
        return x


def train(model, optimizer, batches, before_step=lambda number: None):
    losses = []
    for number, x in enumerate(batches):
        before_step(number)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, list(model.parameters())


def optimizer_of(name, model):
    return {
        "sgd": lambda: torch.optim.SGD(model.parameters(), 0.1),
        "momentum": lambda: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam(model.parameters(), 0.01),
    }[name]()


def same(first, second):
    return all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )


def pair(seed=0, **how):
    torch.manual_seed(seed)
    model = Skips(**how)
    return model, copy.deepcopy(model)


def peak_of_step(model, batch, name="sgd"):
    """The peak of a second step, which has optimizer state and old gradients."""
    model = copy.deepcopy(model)
    optimizer = optimizer_of(name, model)
    with remint.budget("1GiB", learn=False) as run:
        train(model, optimizer, [batch] * 2)
    return run.peak_bytes


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_step_that_comes_again_is_learned(name, dropout):
    model, other = pair(dropout=dropout)
    x = torch.randn(512, 32)
    budget = int(0.65 * peak_of_step(other, x, name))
    torch.manual_seed(1)
    with remint.budget(budget, costs=COSTS, learn=False) as greedy:
        expected = train(model, optimizer_of(name, model), [x] * 8)
    torch.manual_seed(1)
    with remint.budget(budget, costs=COSTS, check=True) as run:
        found = train(other, optimizer_of(name, other), [x] * 8)
    assert same(expected, found)
    assert run.peak_bytes <= run.budget_bytes
    assert run.num_evictions > 0
    learning = run.learning
    assert learning.learned.num_steps >= 4, str(learning)
    assert learning.num_departures == 0, learning.last_departure
    assert run.rematerialized_seconds <= greedy.rematerialized_seconds
    assert learning.known_bytes > 0
    assert "learned" in str(run)


def test_weights_that_are_read_again_after_their_recipes_are_gone():
    """How often a step does that depends on what is pinned. The tensors of the step have the same numbers then, too."""
    model, plain = pair()
    x = torch.randn(512, 32)
    budget = int(0.75 * peak_of_step(model, x))
    weight = torch.randn(32, 32)
    kept = []

    def before_step(number):
        kept.clear()
        product = x @ weight
        if number < 2:
            product.data_ptr()  # it is pinned, so nothing reads the weight any more
        kept.extend([product, x @ weight])

    with remint.budget(budget, plan=False, costs=COSTS, check=True) as run:
        inside = train(model, optimizer_of("sgd", model), [x] * 8, before_step)
    assert same(inside, train(plain, optimizer_of("sgd", plain), [x] * 8))
    assert run.num_evictions > 0
    assert run.learning.num_departures == 0, run.learning.last_departure
    assert run.learning.learned.num_steps == 6


def test_how_many_steps_it_takes_to_learn():
    """One shows that memory is short, and one is noted. After a departure, one is noted again."""
    model, plain = pair()
    batch, odd = torch.randn(512, 32), torch.randn(500, 32)
    budget = int(0.65 * peak_of_step(model, batch))
    batches = [batch] * 5 + [odd] + [batch] * 3
    with remint.budget(budget, plan=False, costs=COSTS) as run:
        inside = train(model, optimizer_of("sgd", model), batches)
    assert same(inside, train(plain, optimizer_of("sgd", plain), batches))
    learning = run.learning
    assert learning.num_departures == 1, str(learning)
    assert (learning.greedy.num_steps, learning.learned.num_steps) == (3, 6), str(learning)
    assert learning.num_known_steps == 1


def test_without_learning_nothing_is_known():
    model, _ = pair()
    x = torch.randn(512, 32)
    with remint.budget(int(0.65 * peak_of_step(model, x)), learn=False) as run:
        train(model, optimizer_of("sgd", model), [x] * 5)
    assert run.learning.num_known_steps == 0
    assert run.learning.learned.num_steps == 0


def test_a_step_that_fits_is_not_noted():
    model, _ = pair()
    with remint.budget("1GiB") as run:
        train(model, optimizer_of("sgd", model), [torch.randn(512, 32)] * 5)
    assert run.num_evictions == 0
    assert run.learning.num_known_steps == 0


def test_steps_without_an_optimizer_end_with_the_backward_pass():
    model, other = pair()
    x = torch.randn(512, 32)

    def descend(model):
        losses = []
        for _ in range(8):
            loss = model(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
            losses.append(loss.detach().clone())
        return losses, [p.detach().clone() for p in model.parameters()]

    expected = descend(model)
    with remint.budget(int(0.65 * peak_of_step(other, x)), costs=COSTS, check=True) as run:
        found = descend(other)
    assert same(expected, found)
    assert run.learning.learned.num_steps >= 3, str(run.learning)


def test_steps_can_be_marked_by_hand():
    model, _ = pair()
    x = torch.randn(512, 32)
    with remint.budget(int(0.65 * peak_of_step(model, x)), costs=COSTS, check=True) as run, torch.no_grad():
        kept = None
        for _ in range(8):
            # A step without gradients: the outputs of all layers stay.
            outputs = [x * 1]
            for block in [*model.down] * 6:
                outputs.append(block(outputs[-1]))
            found = sum(outputs)
            kept = found if kept is None else kept
            assert torch.equal(found, kept)
            del outputs, found
            run.step()
    assert run.num_evictions > 0
    assert run.learning.learned.num_steps + run.learning.greedy.num_steps >= 6


def test_accumulated_gradients():
    model, other = pair()
    batches = [torch.randn(256, 32) for _ in range(3)]

    def descend(model):
        optimizer = optimizer_of("adam", model)
        for _ in range(6):
            optimizer.zero_grad()
            for x in batches:
                model(x).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()], []

    expected = descend(model)
    with remint.budget(int(0.75 * peak_of_step(other, batches[0], "adam")), costs=COSTS, check=True) as run:
        found = descend(other)
    assert same(expected, found)
    assert run.learning.learned.num_steps >= 2, str(run.learning)


def test_two_optimizers_in_turns():
    models, others = pair(0), pair(1)
    x = torch.randn(512, 32)

    def descend(first, second):
        optimizers = [optimizer_of("sgd", first), optimizer_of("adam", second)]
        for _ in range(6):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        return [p.detach().clone() for m in (first, second) for p in m.parameters()], []

    expected = descend(models[0], others[0])
    with remint.budget(int(0.8 * peak_of_step(models[1], x)), costs=COSTS, check=True) as run:
        found = descend(models[1], others[1])
    assert same(expected, found)
    assert run.learning.num_known_steps >= 2


def test_evaluation_in_between():
    model, other = pair()
    x = torch.randn(512, 32)

    def descend(model):
        optimizer = optimizer_of("sgd", model)
        for number in range(9):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if number % 3 == 2:
                with torch.no_grad():
                    model.eval()
                    model(x[:256])
                    model.train()
        return [p.detach().clone() for p in model.parameters()], []

    expected = descend(model)
    with remint.budget(int(0.65 * peak_of_step(other, x)), costs=COSTS, check=True) as run:
        found = descend(other)
    assert same(expected, found)
    assert run.learning.learned.num_steps >= 2, str(run.learning)


def test_an_error_in_the_middle_of_a_learned_step():
    model, other = pair()
    x = torch.randn(512, 32)

    def descend(model):
        optimizer = optimizer_of("sgd", model)
        for number in range(8):
            optimizer.zero_grad()
            if number == 5:
                with pytest.raises(RuntimeError, match="shapes"):
                    torch.mm(model(x), x)
            model(x).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()], []

    expected = descend(model)
    with remint.budget(int(0.65 * peak_of_step(other, x)), costs=COSTS, check=True) as run:
        found = descend(other)
    assert same(expected, found)
    assert run.learning.num_departures >= 1


@settings(deadline=None)
@given(
    sizes=st.lists(st.sampled_from([384, 448, 512]), min_size=1, max_size=3, unique=True),
    turns=st.lists(st.integers(0, 2), min_size=6, max_size=12),
    odd=st.sets(st.integers(0, 11), max_size=4),
    name=st.sampled_from(["sgd", "adam"]),
    part=st.sampled_from([0.6, 0.7, 0.85]),
    seed=st.integers(0, 100),
)
def test_programs_that_repeat_mutate_and_depart_keep_their_bits(sizes, turns, odd, name, part, seed):
    model, other = pair(seed, dropout=0.3)
    torch.manual_seed(seed)
    inputs = [torch.randn(size, 32) for size in sizes]
    batches = [inputs[turn % len(inputs)] for turn in turns]
    held = []

    def before_step(number):
        # Now and then something else happens in the middle of what was learned.
        if number in odd:
            held.append((inputs[0] * number).relu())
        if number - 1 in odd and held:
            held.pop()

    torch.manual_seed(seed)
    expected = train(model, optimizer_of(name, model), batches, before_step)
    held.clear()
    budget = int(part * peak_of_step(other, max(inputs, key=len), name)) + 2 * inputs[0].nbytes
    torch.manual_seed(seed)
    with remint.budget(budget, check=True) as run:
        found = train(other, optimizer_of(name, other), batches, before_step)
    assert same(expected, found)
    assert run.peak_bytes <= run.budget_bytes
