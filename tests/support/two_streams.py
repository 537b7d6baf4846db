"""Programs on two streams of the test device: tensors to compare, and work that comes late."""

import torch

from remint.testing import accelerator

SIZE = 4096
KIB = 16  # of one tensor
BASE = torch.arange(float(SIZE))


def load(delay_us: int = 0, seed: int = 0) -> str:
    return accelerator.load(devices=2, delay_us=delay_us, seed=seed)


def streams(device: str) -> tuple[torch.Stream, torch.Stream]:
    return torch.accelerator.current_stream(), torch.Stream(device)


def numbers(device: str) -> torch.Tensor:
    made = BASE.to(device)
    torch.accelerator.synchronize()
    return made


def warm_up(device: str) -> None:
    """The host waits for the first call of a kind, which would order the streams."""
    a = numbers(device)
    for made in (a * 2, a * 3, a + 1.0, a + 5.0, torch.cat([a, a]), a.sum(), a.clone().zero_(), a.clone().mul_(2.0)):
        made.record_stream(torch.accelerator.current_stream())
    out = torch.empty(SIZE, device=device)
    torch.mul(a, a, out=out)
    out.add_(1.0)
    torch.accelerator.synchronize()


def late() -> None:
    """What the current stream does from here on comes late."""
    accelerator.sleep(30_000)


def assert_right(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.accelerator.synchronize()
    assert torch.equal(found.cpu(), expected)
