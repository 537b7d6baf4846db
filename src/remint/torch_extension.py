"""Loads `remint._torch`, the engine on real tensors, and opens its sessions.

The module stands below both the runtime and capture: the runtime opens a session for each budget and each recording,
capture opens one to measure the workspace of an op.

The module of `make build`, or of an installation that found torch, lies in the package. Without one for the installed
torch, `remint.native` builds it on first use.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import mmap
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remint import errors, native
from remint.engine_options import EngineOptions

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from remint import _torch

# The oldest one that was tried. csrc/torch/older_torch.h has what it lacks.
OLDEST_TORCH = (2, 9)
# A session that only allocates: nothing is evicted by choice, recorded or checked.
_PLAIN_SESSION: dict[str, Any] = {
    "device": "cpu",
    **EngineOptions(policy="lru").keywords(),
    "chaos": False,
    "spill": False,
    "soft": False,
    "timeline": False,
    "events": False,
    "blocks": False,
    "record": False,
    "source_lines": False,
    "learn": False,
    "several": False,
    "partner": None,
    "planner": [],
    "sleep": False,
    "max_slowdown": 0.0,
    "offload_folder": "",
    "measure_bandwidth": False,
}


_LOADING = threading.Lock()


@functools.cache
def load() -> ModuleType:
    """Return `remint._torch`, which is built if there is none for the installed torch.

    Raises an `ImportError` that says what to do if that is not possible.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("remint.budget runs PyTorch programs: install torch (pip install torch)") from error
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < OLDEST_TORCH:
        raise ImportError(
            f"remint.budget needs torch {'.'.join(map(str, OLDEST_TORCH))} or newer, and this is torch "
            f"{torch.__version__}: upgrade it (pip install --upgrade torch)"
        )
    # A second thread finds the module that the first one loaded: no process can load it twice.
    with _LOADING:
        module = _imported(torch.__version__, cuda=torch.version.cuda is not None) or _load_file(build())
    errors.BudgetError.__bases__ = (torch.OutOfMemoryError,)
    return module


def build(*, again: bool = False) -> Path:
    """Build `remint._torch` for the installed torch, if that was not done before, or `again`; return its path."""
    import torch

    installation = native.TorchInstallation(
        version=torch.__version__,
        folder=Path(torch.__file__).parent,
        cxx11_abi=torch.compiled_with_cxx11_abi(),
        cuda=torch.version.cuda is not None,
    )
    sources = native.Sources.find(cuda=bool(installation.cuda_headers))
    return native.built_module(installation, sources, again=again)


def _imported(torch_version: str, *, cuda: bool) -> ModuleType | None:
    """Return the module that lies in the package, if it was built for this torch: `make build` puts one there."""
    spec = importlib.util.find_spec("remint._torch")
    if spec is None or spec.origin is None:
        return None
    # Its version is read from the file: once a module for another torch is loaded, no other can be.
    with Path(spec.origin).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = re.search(rb"\bbuilt for torch (\d+(?:\.\w+)*)( with CUDA)?", content)
        built_for = found[1].decode() if found else None
        with_cuda = found is not None and found[2] is not None
    if built_for != torch_version.split("+")[0] or with_cuda != cuda:
        return None
    return importlib.import_module("remint._torch")


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("remint._torch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["remint._torch"] = module
    sys.modules["remint"]._torch = module  # type: ignore[attr-defined]
    return module


def new_session(budget: int, **options: Any) -> _torch.Session:
    """Return a session of `budget` bytes that is not entered yet; `options` change those of a plain session."""
    session: _torch.Session = load().Session(budget=budget, **{**_PLAIN_SESSION, **options})
    return session


def free_workspaces(device: str) -> None:
    """Free the memory that libraries of a device keep for themselves: in an arena, it would keep the arena."""
    import torch

    if device.startswith("cuda"):
        torch._C._cuda_clearCublasWorkspaces()


def device_name(device: str | torch.device | None) -> str:
    """Return the device that a budget is of: the given one, or the accelerator if remint has budgets for it."""
    import torch

    if device is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        ours = accelerator is not None and accelerator.type in ("cuda", torch._C._get_privateuse1_backend_name())
        device = accelerator if accelerator is not None and ours else "cpu"
    found = torch.device(device)
    if found.type == "cpu":
        return "cpu"
    if found.index is None and found == torch.accelerator.current_accelerator():
        return f"{found.type}:{torch.accelerator.current_device_index()}"
    return str(found)
