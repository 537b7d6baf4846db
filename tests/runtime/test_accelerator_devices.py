"""Budgets of several devices, with delays and poison: the bits of the same program without a budget."""

import itertools
import threading

import pytest
import torch
from torch import nn

import remint
from remint.testing import accelerator

pytestmark = pytest.mark.accelerator

MIB = 1 << 20


def load(delay_us: int = 0, seed: int = 0) -> str:
    return accelerator.load(devices=2, delay_us=delay_us, seed=seed)


def roomy(name: str) -> dict[str, str]:
    return {f"{name}:0": "64MiB", f"{name}:1": "64MiB", "cpu": "64MiB"}


@pytest.fixture(params=[0, 200])
def device(request):
    name = load(request.param, seed=request.param)
    yield name
    for index in (0, 1):
        torch.accelerator.synchronize(index)


class Pipeline(nn.Module):
    """Two stages on two devices, and a head on the host."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.name = name

        def stage(*others: nn.Module) -> nn.Module:
            layers = [[nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh()] for _ in range(3)]
            return nn.Sequential(*itertools.chain(*layers), *others)

        self.first = stage(nn.Dropout(0.2), nn.BatchNorm1d(64)).to(f"{name}:0")
        self.second = stage(nn.LayerNorm(64)).to(f"{name}:1")
        self.head = stage()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.to(f"{self.name}:0", non_blocking=True))
        x = x + self.second(x.to(f"{self.name}:1")).to(f"{self.name}:0")
        return self.head(x.cpu())


def train(name: str, budgets: dict[str, int | str] | None, steps: int = 3, **options: object):
    model = Pipeline(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    losses: list[float] = []

    def go() -> None:
        for step in range(steps):
            x = torch.randn(512, 64, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    run = None
    if budgets is None:
        go()
    else:
        with remint.budget(budgets, **options) as run:  # type: ignore[arg-type]
            go()
    state = [p.detach().cpu() for p in model.parameters()] + [p.grad.cpu() for p in model.parameters()]
    return losses, state + [b.cpu() for b in model.buffers()], run


def assert_same(expected, found) -> None:
    assert expected[0] == found[0]
    assert all(map(torch.equal, expected[1], found[1]))


def test_a_pipeline_in_tight_arenas(device):
    expected = train(device, None)
    found = train(device, roomy(device), check=True)
    assert_same(expected, found)
    assert found[2].num_rematerializations == 0
    peaks = {name: run.peak_bytes for name, run in found[2].devices.items()}
    assert list(peaks) == [f"{device}:0", f"{device}:1", "cpu"]
    tight = {name: peak * 3 // 4 for name, peak in peaks.items()}
    found = train(device, tight, check=True)
    assert_same(expected, found)
    for name, run in found[2].devices.items():
        assert run.peak_bytes <= tight[name], name
        assert run.num_evictions > 0, name
        assert run.num_rematerializations > 0, name


@pytest.mark.parametrize("steps", [1, 6])
def test_a_pipeline_under_chaos_and_in_learned_steps(device, steps):
    expected = train(device, None, steps)
    found = train(device, roomy(device), steps, chaos=True, check=True)
    assert_same(expected, found)
    assert all(run.num_rematerializations > 0 for run in found[2].devices.values())
    peaks = {name: run.peak_bytes for name, run in train(device, roomy(device), steps)[2].devices.items()}
    found = train(device, {name: peak * 7 // 10 for name, peak in peaks.items()}, steps)
    assert_same(expected, found)
    if steps > 1:
        assert found[2].learning.num_known_steps > 0


def test_copies_of_all_kinds_under_chaos(device):
    host = torch.randn(64, 64)
    expected = host @ host
    with remint.budget(roomy(device), chaos=True, check=True) as run:
        here = host.clone()  # in the arena of the host
        zero = here.to(f"{device}:0")
        one = here.to(f"{device}:1", non_blocking=True)
        product = zero @ one.to(zero.device)
        assert torch.equal(product.cpu(), expected)
        remint.evict(product)
        assert not remint.is_resident(product)  # a copy elsewhere does not pin its source
        there = product.to(f"{device}:1")
        back = there.to("cpu", non_blocking=False)
        assert torch.equal(back, expected)
        target = torch.empty(64, 64)
        target.copy_(product)
        assert torch.equal(target, expected)
        one.copy_(product)
        assert torch.equal(one.cpu(), expected)
        pinned = torch.empty(64, 64, pin_memory=True)
        pinned.copy_(product, non_blocking=True)
        torch.accelerator.synchronize(0)
        assert torch.equal(pinned, expected)
        assert product.sum().item() == expected.sum().item()
        # Ops with tensors of the host and of a device.
        rows = torch.tensor([3, 1, 2])
        assert torch.equal(product[rows].cpu(), expected[rows])
        half = torch.tensor(0.5)
        assert torch.equal((product * half).cpu(), expected * 0.5)
        assert torch.equal(torch.where(product > 0, product, half).cpu(), torch.where(expected > 0, expected, half))
    assert run.devices[f"{device}:0"].num_rematerializations > 0
    assert torch.equal(there.cpu(), expected)


def test_a_source_that_was_evicted_is_recomputed_for_a_copy(device):
    with remint.budget(roomy(device), check=True) as run:
        x = torch.arange(4096.0, device=f"{device}:0") * 2
        host = torch.arange(4096.0) * 3
        remint.evict(x)
        remint.evict(host)
        assert torch.equal(x.to(f"{device}:1").cpu(), torch.arange(4096.0) * 2)
        assert torch.equal(host.to(f"{device}:1").cpu(), torch.arange(4096.0) * 3)
    assert run.devices[f"{device}:0"].num_rematerializations > 0
    assert run.devices["cpu"].num_rematerializations > 0


def test_a_write_of_one_device_keeps_what_another_has(device):
    with remint.budget(roomy(device), chaos=True, check=True):
        source = torch.ones(4096, device=f"{device}:0") * 3
        copied = source.to(f"{device}:1")
        derived = copied * 2
        source.mul_(5.0)
        torch.ones(4096, device=f"{device}:1") * 7
        assert torch.equal(derived.cpu(), torch.full((4096,), 6.0))
        host = torch.ones(4096) * 3
        moved = host.to(f"{device}:0") + 1
        host.zero_()
        assert torch.equal(moved.cpu(), torch.full((4096,), 4.0))


def test_scatter_and_gather(device):
    """Replicas on each device, as DataParallel makes them, in one thread and in one each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    x = torch.randn(256, 64)
    places = [f"{device}:0", f"{device}:1"]

    def run_replicas(in_threads: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        replicas = [nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(place) for place in places]
        for replica in replicas:
            replica.load_state_dict(model.state_dict())
        parts = [part.to(place) for part, place in zip(x.chunk(2), places, strict=True)]
        outputs: dict[int, torch.Tensor] = {}
        work = [(lambda i=i: outputs.update({i: replicas[i](parts[i])})) for i in range(2)]
        if in_threads:
            threads = [threading.Thread(target=each) for each in work]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            for each in work:
                each()
        gathered = torch.cat([outputs[i].to(places[0]) for i in range(2)])
        gathered.square().sum().backward()
        return gathered.cpu(), [p.grad.cpu() for replica in replicas for p in replica.parameters()]

    expected = run_replicas(False)
    for in_threads in (False, True):
        with remint.budget(roomy(device), chaos=True, check=True):
            found = run_replicas(in_threads)
        assert torch.equal(expected[0], found[0])
        assert all(map(torch.equal, expected[1], found[1]))


def test_modules_default_devices_and_contexts(device):
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    x = torch.randn(32, 64)
    expected = model(x)
    with remint.budget(roomy(device), chaos=True, check=True) as run:
        for place in (f"{device}:0", f"{device}:1", "cpu"):
            model.to(place)
            assert torch.equal(model(x.to(place)).cpu(), expected)
        with torch.device(f"{device}:1"):
            made = torch.arange(1000.0) * 2
            assert made.device.index == 1
        torch.set_default_device(f"{device}:0")
        try:
            default = torch.arange(1000.0) * 3
            assert default.device.index == 0
        finally:
            torch.set_default_device(None)
        with torch.accelerator.device_index(1):
            current = torch.arange(1000.0, device=device) * 4
            assert current.device.index == 1
        for factor, tensor in ((2, made), (3, default), (4, current)):
            assert torch.equal(tensor.cpu(), torch.arange(1000.0) * factor)
    assert all(figures.num_rematerializations > 0 for figures in run.devices.values())


def test_a_replay_on_a_device_that_is_not_current(device):
    with remint.budget(roomy(device), check=True) as run:
        x = torch.nn.functional.dropout(torch.ones(4096, device=f"{device}:1"), 0.5)
        expected = x.cpu()
        remint.evict(x)
        with torch.accelerator.device_index(0):
            assert torch.equal(x.cpu(), expected)
    assert run.devices[f"{device}:1"].num_rematerializations > 0


hidden: list[torch.Tensor] = []


@torch.library.custom_op("remint_devices::peek", mutates_args=())
def peek(x: torch.Tensor) -> torch.Tensor:
    return x + hidden[0].to(x.device)


def test_an_op_that_reads_a_hidden_tensor_of_another_device_is_not_repeated(device):
    with remint.budget(roomy(device), chaos=True, check=True):
        hidden[:] = [torch.ones(4096, device=f"{device}:1") * 3]
        seen = peek(torch.ones(4096, device=f"{device}:0") * 4)
        hidden[0].mul_(5.0)
        assert torch.equal(seen.cpu(), torch.full((4096,), 7.0))
        assert torch.equal(hidden[0].cpu(), torch.full((4096,), 15.0))
    hidden.clear()


def test_figures_are_by_device(device):
    with remint.budget({f"{device}:1": "4MiB", "cpu": "8MiB"}) as run:
        kept = torch.ones(MIB // 4, device=f"{device}:1") * 2
        host = torch.ones(MIB // 2) * 2
        other = torch.ones(MIB, device=f"{device}:0") * 2  # of no budget
        text = str(run)
    assert other.numel() == MIB
    assert host.numel() == kept.numel() * 2
    one, cpu = run.devices[f"{device}:1"], run.devices["cpu"]
    assert (one.budget_bytes, cpu.budget_bytes, run.budget_bytes) == (4 * MIB, 8 * MIB, 12 * MIB)
    assert MIB <= one.peak_bytes <= 2 * MIB + 4096
    assert 2 * MIB <= cpu.peak_bytes <= 4 * MIB + 4096
    assert run.peak_bytes == one.peak_bytes + cpu.peak_bytes
    assert run.num_ops == one.num_ops + cpu.num_ops
    assert run.summary()["num_ops"] == run.num_ops
    assert f"{device}:1:" in text
    assert "cpu:" in text


def test_each_wall_holds_and_names_its_device(device):
    for place, nbytes in ((f"{device}:0", 4096), (f"{device}:1", 2 * MIB), ("cpu", 2 * MIB)):
        budgets = {f"{device}:0": MIB, f"{device}:1": MIB, "cpu": MIB}
        with remint.budget(budgets) as run:
            if nbytes <= MIB:
                torch.ones(nbytes // 4, device=place)
                continue
            with pytest.raises(remint.BudgetError, match=f"1.0 MiB on {place} is too small"):
                torch.ones(nbytes // 4, device=place)
        assert all(figures.peak_bytes <= MIB for figures in run.devices.values())


def test_memory_is_given_back(device):
    for index in (0, 1):
        torch.accelerator.synchronize(index)
    before = [torch.accelerator.memory_allocated(i) for i in (0, 1)]
    with remint.budget(roomy(device)):
        kept = [torch.ones(1000, device=f"{device}:{i}") * (i + 2) for i in (0, 1)]
    for i in (0, 1):
        assert torch.accelerator.memory_allocated(i) <= before[i] + 8192
        assert torch.equal(kept[i].cpu(), torch.full((1000,), i + 2.0))


def test_what_cannot_be_asked(device):
    with pytest.raises(ValueError, match="two budgets"), remint.budget({device: "1MiB", f"{device}:0": "1MiB"}):
        pass
    with pytest.raises(ValueError, match="no device"):
        remint.budget({})
    with pytest.raises(ValueError, match="leave device"):
        remint.budget({"cpu": "1MiB"}, device="cpu")
    with pytest.raises(ValueError, match="0 bytes"):
        remint.budget({"cpu": "1MiB", device: 0})
    with pytest.raises(ValueError, match="costs="):
        remint.budget({"cpu": "1MiB", device: "1MiB"}, costs=[1e-6])
    with (
        pytest.raises(ValueError, match="no budgets for the device meta"),
        remint.budget({"cpu": "1MiB", "meta": "1MiB"}),
    ):
        pass
    # Nothing is left behind.
    assert torch.equal(torch.ones(1000) + 1, torch.full((1000,), 2.0))


def test_one_device_in_a_mapping(device):
    with remint.budget({f"{device}:1": "1MiB"}) as run:
        torch.ones(1000, device=f"{device}:1") * 2
    assert list(run.devices) == [f"{device}:1"]
    assert run.peak_bytes > 4000
