"""Budgets on the test device, with delays and poison: the bits of the same device without a budget."""

import functools

import pytest
import torch

import remint
from remint.testing import accelerator
from tests.support.models import CASES, TRANSFORMERS
from tests.support.training import Outcome, assert_same_bits, train

pytestmark = pytest.mark.accelerator

ALL = CASES | TRANSFORMERS
DELAYS = (0, 200)


def load(delay_us: int = 0, seed: int = 0) -> str:
    return accelerator.load(devices=2, delay_us=delay_us, seed=seed)


def case(name: str):
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    return ALL[name]


@functools.cache
def plain(name: str, optimizer: str = "adam", steps: int = 3) -> Outcome:
    return train(case(name), optimizer=optimizer, steps=steps, device=load())


@functools.cache
def peak(name: str, optimizer: str = "adam") -> int:
    found = train(case(name), optimizer=optimizer, device=load(), budget="512MiB", check=True)
    assert_same_bits(plain(name, optimizer), found)
    assert found.run.num_rematerializations == 0
    return found.run.peak_bytes


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("percent", [70, 50])
@pytest.mark.parametrize("name", ALL)
def test_learned_steps(name, percent, optimizer, request, record_property):
    """Six steps: what the first ones show, the later ones know."""
    budget = peak(name, optimizer) * percent // 100
    # Each of two budgets and two optimizers with one of the delays, and with both if everything is asked for.
    one = DELAYS[(percent == 70) == (optimizer == "adam")]
    for delay_us in DELAYS if request.config.getoption("everything") else [one]:
        device = load(delay_us, seed=percent)
        found = train(case(name), optimizer=optimizer, steps=6, device=device, budget=budget)
        assert_same_bits(plain(name, optimizer, steps=6), found)
        assert found.run.peak_bytes <= budget
        learning = found.run.learning
        record_property(f"learned steps of {name}", learning.learned.num_steps)
        # Random trees share no step.
        assert learning.num_known_steps > 0 or name == "tree_lstm"
        # Where all kernels are thought to cost the same, few guides are better than the policy.
        assert learning.learned.num_steps > 0 or (name, percent) != ("lstm", 50)


@pytest.mark.parametrize("delay_us", DELAYS)
@pytest.mark.parametrize(("optimizer", "percent"), [("adam", 70), ("adam", 50), ("sgd", 70), ("sgd", 50)])
@pytest.mark.parametrize("name", ALL)
def test_models(name, optimizer, percent, delay_us):
    """With `coop` alone."""
    budget = peak(name, optimizer) * percent // 100
    device = load(delay_us, seed=percent)
    found = train(case(name), optimizer=optimizer, device=device, budget=budget, policy="coop", learn=False)
    assert_same_bits(plain(name, optimizer), found)
    assert found.run.peak_bytes <= budget
    assert found.run.num_rematerializations > 0


@pytest.mark.parametrize("name", ["mlp", "resnet", "tree_lstm"])
def test_chaos(name):
    found = train(case(name), steps=1, device=load(20), budget="512MiB", chaos=True)
    assert_same_bits(plain(name, steps=1), found)
    assert found.run.num_rematerializations > 0


@pytest.mark.parametrize("policy", ["dtr-eq", "lru"])
def test_policies(policy):
    found = train(case("resnet"), device=load(50), budget=peak("resnet") // 2, policy=policy)
    assert_same_bits(plain("resnet"), found)
    assert found.run.num_rematerializations > 0


# ── Synchronizations, costs and repeatability ──


def training(name, device, steps, **options):
    """Costs come from the device. The loss is read after every step, as programs do."""
    torch.manual_seed(0)
    with torch.device(device):
        model, loss_of = case(name)()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []

    def step():
        optimizer.zero_grad()
        with torch.device(device):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())

    torch.manual_seed(1)
    if not options:
        for _ in range(steps):
            step()
        return seen, None
    with remint.budget(**options) as run:
        for _ in range(steps):
            step()
    return seen, run


def test_a_budget_never_makes_the_host_wait():
    device = load()
    training("resnet", device, 2)  # the host waits for the first call of a kind, to learn the sizes of its results
    training("resnet", device, 2, budget=peak("resnet", "sgd") * 60 // 100)

    def waits(**options):
        before = accelerator.counts()
        found, run = training("resnet", device, 3, **options)
        after = accelerator.counts()
        return found, run, {name: after[name] - before[name] for name in ("synchronizations", "stream_waits")}

    expected, _, without = waits()
    found, run, roomy = waits(budget="512MiB")
    assert (found, roomy) == (expected, without)
    assert run.num_rematerializations == 0
    found, run, tight = waits(budget=peak("resnet", "sgd") * 60 // 100)
    assert (found, tight) == (expected, without)
    assert run.num_rematerializations > 0


@pytest.mark.parametrize("learn", [False, True])
def test_runs_are_repeatable_eviction_for_eviction(learn):
    device = load()
    budget = peak("resnet", "sgd") * 60 // 100
    logs = []
    for seed, delay_us in enumerate([0, 100, 100, 20]):
        load(delay_us, seed)
        _, run = training("resnet", device, 4, budget=budget, events=True, learn=learn)
        assert run.num_rematerializations > 0
        logs.append(run.events)
    assert all(log == logs[0] for log in logs)


def test_costs_come_from_timing_events():
    """After the first step, whose costs are guesses, they are those of the device's clock."""
    device = load()
    seconds = {}
    for steps in (1, 2, 3):
        _, run = training("transformer", device, steps, budget="512MiB", learn=False)
        seconds[steps] = run.computed_seconds
    # The device's clock runs slower than the guess.
    second, third = seconds[2] - seconds[1], seconds[3] - seconds[2]
    assert second > 1.5 * seconds[1]
    assert third == pytest.approx(second, rel=1e-3)


# ── Copies and readers ──


def test_readers_and_copies_under_chaos():
    device = load(100)
    host = torch.randn(64, 64)
    with remint.budget("16MiB", device=device, chaos=True, check=True) as run:
        there = host.to(device, non_blocking=True)
        product = there @ there
        total = product.sum()
        assert total.item() == (host @ host).sum().item()
        assert torch.equal(product.cpu(), host @ host)
        assert not remint.is_resident(product)  # a copy on the host does not pin its source
        target = torch.empty(64, 64)
        target.copy_(product)
        assert torch.equal(target, host @ host)
        pinned = torch.empty(64, 64, pin_memory=True)
        pinned.copy_(product, non_blocking=True)
        torch.accelerator.synchronize()
        assert torch.equal(pinned, host @ host)
        assert product.tolist() == (host @ host).tolist()
        assert repr(product[0, :2]) == repr(product[0, :2])
    assert run.num_rematerializations > 0
    assert torch.equal(product.cpu(), host @ host)


def test_a_module_moves_to_the_device_inside():
    device = load(50)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    x = torch.randn(128, 64)
    expected = model(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with remint.budget("4MiB", device=device, chaos=True):
        model.to(device)
        found = model(x.to(device))
        found.sum().backward()
    assert torch.equal(found.cpu(), expected)
    assert all(torch.equal(p.grad.cpu(), g) for p, g in zip(model.parameters(), gradients, strict=True))
    model.to("cpu")
    assert torch.equal(model(x), expected)


def test_the_default_is_the_accelerator():
    device = load()
    with remint.budget("1MiB") as run:
        torch.ones(1000, device=device) + 1
        torch.ones(100_000) + 1  # on the CPU: does not count
    assert 4000 <= run.peak_bytes <= 16_000
    with remint.budget("1MiB", device="cpu") as run:
        torch.ones(100_000, device=device) + 1
        torch.ones(1000) + 1
    assert 4000 <= run.peak_bytes <= 16_000


def test_each_device_has_its_own_budget():
    device = load()
    with remint.budget("4MiB", device=f"{device}:1", chaos=True) as run:
        first = torch.ones(1000, device=f"{device}:0") * 2
        second = torch.ones(1000, device=f"{device}:1") * 3
        total = second + first.to(f"{device}:1")
    assert run.peak_bytes < 40_000
    assert torch.equal(total.cpu(), torch.full((1000,), 5.0))


def test_an_unknown_device_is_an_error():
    with pytest.raises(ValueError, match="no budgets for the device meta"), remint.budget("1MiB", device="meta"):
        pass


def test_a_soft_wall_is_an_error():
    device = load()
    with pytest.raises(ValueError, match='wall="soft" is for CUDA'):
        remint.budget("1MiB", device=device, wall="soft").__enter__()
    with remint.budget("1MiB", device=device):
        assert (torch.ones(1000, device=device) + 1).sum().item() == 2000


def test_a_budget_gives_its_memory_back():
    device = load(100)
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    with remint.budget("64MiB", device=device) as run:
        kept = torch.ones(1000, device=device) * 2
        gone = torch.ones(1000, device=device) * 3
        del gone
        assert torch.accelerator.memory_allocated() >= before + (64 << 20)
    assert torch.accelerator.memory_allocated() <= before + 8192
    assert torch.equal(kept.cpu(), torch.full((1000,), 2.0))
    assert run.peak_bytes > 0


def test_out_of_memory_says_what_to_do():
    device = load()
    with pytest.raises(remint.BudgetError, match="too small"), remint.budget("64KiB", device=device):
        torch.ones(1 << 20, device=device)
