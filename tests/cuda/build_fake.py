"""Builds the fake CUDA runtime: python tests/cuda/build_fake.py OUTPUT, with the Python of a CUDA build of torch.

Functions that fake_runtime.cpp does not have do nothing and succeed: PyTorch links many that it never calls here.
"""

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_python.so", "libtorch_cuda_linalg.so")
FAKED = re.compile(r"\b(?:__cuda|cuda|cublas)[A-Z_a-z0-9]*\b")
# What PyTorch looks up in the driver by name.
# fmt: off
DRIVER = [
    "cuCtxSetCurrent", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuFuncGetAttribute",
    "cuFuncSetAttribute", "cuFuncSetCacheConfig", "cuGetErrorString", "cuInit", "cuLaunchCooperativeKernel",
    "cuLaunchKernel", "cuLinkAddData_v2", "cuLinkComplete", "cuLinkCreate_v2", "cuModuleGetFunction", "cuModuleLoad",
    "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleUnload", "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuPointerGetAttribute", "cuTensorMapEncodeTiled",
]
# fmt: on


def needed(torch_folder: Path) -> set[str]:
    """Return the functions of CUDA and cuBLAS that PyTorch's libraries link."""
    names: set[str] = set()
    for library in LIBRARIES:
        symbols = subprocess.run(
            ["nm", "-D", "--undefined-only", torch_folder / "lib" / library],
            capture_output=True,
            text=True,
            check=False,
        )
        names.update(FAKED.findall(symbols.stdout))
    return names


def build(output: Path) -> None:
    """Compile the library."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch_folder = Path(spec.origin).parent
    source = Path(__file__).with_name("fake_runtime.cpp")
    written = set(re.findall(r"FAKE\((\w+)|^extern \"C\" .*?\b(\w+)\(", source.read_text(), re.MULTILINE))
    missing = sorted({*needed(torch_folder), *DRIVER} - {name for pair in written for name in pair})
    headers = next(torch_folder.parent.glob("nvidia/cu[0-9]*/include"))
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.c"
        empty.write_text("".join(f"int {name}() {{ return 0; }}\n" for name in missing))
        objects = Path(folder) / "empty.o"
        subprocess.run(["gcc", "-fPIC", "-w", "-c", empty, "-o", objects], check=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        # PyTorch opens the driver by this name, and finds it loaded.
        flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w", f"-I{headers}", "-Wl,-soname,libcuda.so.1"]
        subprocess.run(["g++", *flags, source, objects, "-o", output, "-lpthread"], check=True)
    print(f"{output}: {len(missing)} functions do nothing")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
