"""Devices by their published peak rates, to estimate a step that cannot be run here.

Sources: NVIDIA's data sheets of the V100 (SXM2), A100 (SXM), H100 (SXM5) and L4, and its Ada architecture paper for the
RTX 4090. Rates are without sparsity; 16 bits with accumulation in 32. Kernels of real programs reach a part of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch


@dataclass(frozen=True, kw_only=True)
class Device:
    """What a roofline needs to know of a device."""

    name: str
    memory_bytes: int
    bytes_per_second: float
    flops_16_bits: float
    """Per second, for matrices of 16 bits."""
    flops_32_bits: float
    seconds_per_call: float = 3e-6
    """The least that an op takes."""

    def flops(self, dtype: torch.dtype) -> float:
        """Return the operations per second on matrices of a type."""
        return self.flops_16_bits if dtype in (torch.float16, torch.bfloat16) else self.flops_32_bits


def _device(name: str, gib: int, gigabytes: float, teraflops_16: float, teraflops_32: float) -> Device:
    return Device(
        name=name,
        memory_bytes=gib << 30,
        bytes_per_second=gigabytes * 1e9,
        flops_16_bits=teraflops_16 * 1e12,
        flops_32_bits=teraflops_32 * 1e12,
    )


DEVICES = {
    device.name: device
    for device in (
        _device("v100-32gb", 32, 900, 125, 15.7),
        _device("a100-40gb", 40, 1555, 312, 19.5),
        _device("a100-80gb", 80, 2039, 312, 19.5),
        _device("h100-80gb", 80, 3350, 989, 67),
        _device("l4-24gb", 24, 300, 121, 30.3),
        _device("rtx4090-24gb", 24, 1008, 165, 82.6),
    )
}


def device_named(name: str) -> Device:
    """Return a device of the table, or of a JSON file with the fields of `Device`."""
    if name in DEVICES:
        return DEVICES[name]
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        raise ValueError(f"there is no device {name!r}: choose one of {', '.join(DEVICES)}, or give a .json file")
    known = {field.name for field in fields(Device)}
    try:
        data = json.loads(path.read_text())
        return Device(**{"name": path.stem, **data})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no description of a device ({error}): its fields are {', '.join(known)}"
        ) from error
