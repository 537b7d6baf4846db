"""A test device for PyTorch: an accelerator without hardware.

>>> import torch
>>> from remint.testing import accelerator
>>> name = accelerator.load()
>>> x = torch.randn(4, 4).to(name)
>>> (x @ x).device
device(type='remint_test', index=0)
>>> bool(((x @ x).cpu() == x.cpu() @ x.cpu()).all())
True

It behaves as a GPU does where that matters to a program:

- The host cannot touch its memory: a read through `data_ptr()` ends the process.
- Ops run after the call has returned, on streams. A stream is a thread, and waits a random time before each op.
- Memory that is freed is filled with 0xff bytes, in the order of the stream it was allocated on. A program that
  forgets `record_stream` or an event computes NaN here, where a GPU would be right most of the time.
- Some ops ask for scratch memory: matrix products and convolutions.
- Random numbers come from a seed and an offset.
- Events have times on a clock of their own, which advances by a fixed cost per op: the same in every run.

Every op runs by its CPU kernel, so results have the bits of the CPU, random numbers apart. It is made for tests, not
for speed. Tensors are dense: no sparse, quantized or nested ones.

A process can load it once, and cannot go back: `torch.accelerator` is this device from then on. Run tests that use it
in a process of their own. The device is not part of the wheels of remint. `make build` builds it in a checkout; `pip
install --no-build-isolation --config-settings=cmake.define.REMINT_TEST_DEVICE=ON .` installs it from there.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import types
from typing import Any

NAME = "remint_test"


def load(
    *, devices: int = 2, delay_us: int = 200, poison: bool = True, seed: int = 0, memory_bytes: int = 1 << 30
) -> str:
    """Register the test device with PyTorch, and return its name.

    Called again, it changes the delays, the poison and the seed. The number of devices and their memory stay as the
    first call set them.

    Args:
        devices: how many devices there are.
        delay_us: the longest time that a stream waits before an op, in microseconds. Delays are drawn at random.
        poison: fill freed memory with 0xff bytes.
        seed: of the delays.
        memory_bytes: the memory of each device. Pages are taken from the host when they are first written.
    """
    if devices < 1:
        raise ValueError(f"there must be at least one device, not {devices}")
    if delay_us < 0:
        raise ValueError(f"a delay cannot be negative: {delay_us} µs")
    native = _open(devices, memory_bytes) if not _opened else _native()
    if _opened and _opened != [(devices, memory_bytes)]:
        num, nbytes = _opened[0]
        raise ValueError(
            f"the device was loaded with devices={num}, memory_bytes={nbytes}, which cannot change: start another "
            f"process for devices={devices}, memory_bytes={memory_bytes}"
        )
    if not _opened:
        _opened.append((devices, memory_bytes))
    native.set_delay(delay_us)
    native.set_poison(poison)
    native.set_seed(seed + 1)
    return NAME


def counts() -> dict[str, int]:
    """Return what the devices did since they were loaded, by name.

    `kernels`: ops. `waited_kernels`: ops that the host waited for, among them the first of each operator and sizes.
    `synchronizations`: times the host waited because the program asked for it (`item()`, `cpu()`, `synchronize()`).
    `events`, `stream_waits`: events that were recorded, and that streams waited for. `work`: pieces of work given to
    streams. `allocations`: memory taken from the device's own allocator.
    """
    found: dict[str, int] = _native().counts()
    return found


def copy_bytes(to: int, source: int, nbytes: int) -> None:
    """Copy between two addresses on the current stream, without an op: as a kernel of another library does.

    >>> import torch
    >>> name = load()
    >>> x, y = torch.arange(3.0, device=name), torch.zeros(3, device=name)
    >>> copy_bytes(y.data_ptr(), x.data_ptr(), x.nbytes)
    >>> y.tolist()
    [0.0, 1.0, 2.0]
    """
    _native().copy_bytes(to, source, nbytes)


def sleep(microseconds: int) -> None:
    """Keep the current stream busy for a while. The host does not wait."""
    _native().sleep(microseconds)


_opened: list[tuple[int, int]] = []


@functools.cache
def _native() -> types.ModuleType:
    import torch

    try:
        native = importlib.import_module("remint._accelerator")
    except ImportError as error:
        raise ImportError(
            "the test device is not built: it is not part of remint's wheels. Run `make build` in a checkout of "
            "remint, or install from it with --config-settings=cmake.define.REMINT_TEST_DEVICE=ON"
        ) from error
    built, found = native.torch_version.split("+")[0], torch.__version__.split("+")[0]
    if built != found:
        raise ImportError(f"the test device was built against torch {built}, but torch {found} is installed")
    return native


def _open(devices: int, memory_bytes: int) -> types.ModuleType:
    """Register the device, and the module that PyTorch expects under its name: `torch.remint_test`."""
    import torch
    from torch.utils import backend_registration

    native = _native()
    native.open(devices, memory_bytes)
    backend_registration.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module(devices, native))  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend()
    # Work must not run while the interpreter is taken down.
    atexit.register(native.wait_for_all)
    return native


def _device_module(devices: int, native: types.ModuleType) -> types.ModuleType:
    import torch

    generators = [native.default_generator(index) for index in range(devices)]

    def index_of(device: int | str | torch.device | None) -> int:
        if isinstance(device, int):
            return device
        index = torch.device(device).index if device is not None else None
        return torch.accelerator.current_device_index() if index is None else index

    def manual_seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    made = types.ModuleType(f"torch.{NAME}")
    module: Any = made
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: devices
    module.current_device = torch.accelerator.current_device_index
    module.set_device = torch.accelerator.set_device_index
    module.synchronize = torch.accelerator.synchronize
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.default_generators = tuple(generators)
    module.manual_seed_all = manual_seed_all
    module.manual_seed = lambda seed: generators[index_of(None)].manual_seed(seed)
    module.get_rng_state = lambda device=None: generators[index_of(device)].get_state()
    module.set_rng_state = lambda state, device=None: generators[index_of(device)].set_state(state)
    return made
