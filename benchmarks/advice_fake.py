"""What is advice from fake tensors worth? Its peak and time beside real steps on this CPU, for five models.

python benchmarks/advice_fake.py

The device is this machine, one thread: its rates are those of one large matrix product and one large copy. Real peaks
are those of a budget that holds everything, with weights and inputs. Times are CPU seconds, the fastest of five.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

import advice as programs
import remint
import report
import workloads
from remint.advice.devices import Device
from remint.advice.fake import advise_fake

MODELS = ("resnet", "gpt", "unet", "lstm", "convnext")


def fastest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)


def this_machine() -> Device:
    a = torch.randn(1024, 1024)
    long, other = torch.zeros(32 << 20), torch.zeros(32 << 20)
    flops = 2 * 1024**3 / fastest(lambda: a @ a)
    moved = 2 * long.nbytes / fastest(lambda: other.copy_(long))
    return Device(
        name="this machine", memory_bytes=1 << 40, bytes_per_second=moved, flops_16_bits=flops, flops_32_bits=flops
    )


def make(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    if name == "convnext":
        return programs.ConvNeXt(), (torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,)))
    return workloads.make(name)


def real(name: str) -> tuple[int, float]:
    """Return the peak of forward and backward with weights and inputs, and the time of one."""
    net, inputs = make(name)
    held = sum(t.nbytes for t in (*net.parameters(), *net.buffers(), *inputs))

    def step() -> None:
        net.zero_grad()
        net(*inputs).backward()

    with remint.budget("8GiB", learn=False) as run:
        step()
        step()
    return held + run.peak_bytes, fastest(step)


def main() -> None:
    """Measure and publish."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    device = this_machine()
    rows = []
    for name in MODELS:
        peak, seconds = real(name)
        fake = advise_fake(lambda name=name: (*make(name), None, None), subject=name, device=device, optimizer="sgd")
        mib = [f"{nbytes / 2**20:.1f}" for nbytes in (fake.peak_bytes, peak)]
        times = [f"{each * 1e3:.1f}" for each in (fake.step_seconds, seconds)]
        off = [f"{fake.peak_bytes / peak - 1:+.1%}", f"{fake.step_seconds / seconds - 1:+.0%}"]
        rows.append([name, *mib, off[0], *times, off[1]])
        print(*rows[-1], flush=True)
    headings = ["model", "peak MiB, fake", "real", "off by", "ms, fake", "real", "off by"]
    report.publish("Advice from fake tensors", report.markdown(headings, rows))


if __name__ == "__main__":
    main()
