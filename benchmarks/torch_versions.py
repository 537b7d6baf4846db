"""Which versions of torch does remint work with? Each in an environment of its own, one after the other.

python benchmarks/torch_versions.py                    # all
python benchmarks/torch_versions.py 2.13.0 2.15.0      # some
python benchmarks/torch_versions.py --cuda-builds      # where there is no CPU build, take the CUDA build: 5 GB each

For each version: install its CPU build, install remint from this checkout as a user does, run `remint doctor`, which
builds the runtime, and `remint doctor --device cpu`: bits, and a sample of each of PyTorch's operators with everything
evicted. Where pip finds no CPU build for this machine, the sources are only compiled, against the headers of the build
for macOS. The table has the last result of each version.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import report
from remint.native.compiler import Compiler, TorchInstallation, num_jobs
from remint.native.sources import Sources

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
FREE_BYTES = 12 << 30


class Failed(Exception):  # noqa: N818 (the end of one version, not of the program)
    """What went wrong with one version."""


def run(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()] or ["it said nothing"]
        # `remint doctor` marks what is wrong so.
        telling = [line for line in said if line.startswith("BAD")] or [
            line for line in said if "error" in line.lower()
        ]
        raise Failed((telling or said[-1:])[0])
    return done.stdout


def try_version(version: str, folder: Path, *, cuda_builds: bool) -> dict[str, Any]:
    """Install a version and run the checks; compile only, if there is no build for this machine."""
    found: dict[str, Any] = {"torch": version}
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    try:
        run(python, "-m", "pip", "install", "--quiet", f"torch=={version}+cpu")
    except Failed:
        if not cuda_builds:
            return found | compiled(version, folder)
        run(python, "-m", "pip", "install", "--quiet", f"torch==={version}")
    cuda = run(python, "-c", "import torch; print(torch.version.cuda)").strip()
    assert cuda_builds or cuda == "None", cuda
    found |= {"build": "CPU" if cuda == "None" else f"CUDA {cuda}"}
    began = time.perf_counter()
    # expecttest is what PyTorch's operator database needs.
    run(python, "-m", "pip", "install", "--quiet", ROOT, "expecttest")
    found["install_seconds"] = round(time.perf_counter() - began)
    # The runtime is built into a cache of its own.
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    remint = folder / "venv/bin/remint"
    began = time.perf_counter()
    run(remint, "doctor", environment=environment)
    found["build_seconds"] = round(time.perf_counter() - began)
    run(
        remint, "doctor", "--device", "cpu", "--samples", "1", "--json", folder / "checks.json", environment=environment
    )
    found["checks"] = json.loads((folder / "checks.json").read_text())["checks"]
    return found


def compiled(version: str, folder: Path) -> dict[str, Any]:
    """Compile the sources against the headers of a build for macOS, which has no CUDA. Nothing is linked or run."""
    platforms = [word for k in (11, 12, 13, 14, 15) for word in ("--platform", f"macosx_{k}_0_arm64")]
    run(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms,
        "--dest", folder, f"torch==={version}",
    )  # fmt: skip
    (wheel,) = folder.glob("torch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        headers = [name for name in archive.namelist() if name.startswith("torch/include/")]
        archive.extractall(folder, headers)
    wheel.unlink()
    sources = Sources.find()
    installation = TorchInstallation(version=version, folder=folder / "torch", cxx11_abi=True)
    compiler = Compiler.find(installation, sources.folder)

    def compile_one(path: Path) -> str:
        command = compiler.compile(sources.folder / path, Path("/dev/null"))
        command.insert(1, "-fsyntax-only")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        return (errors or ["the compiler failed"])[0] if done.returncode else ""

    with ThreadPoolExecutor(num_jobs()) as jobs:
        errors = [error for error in jobs.map(compile_one, sources.runtime) if error]
    if errors:
        raise Failed(f"{len(errors)} of {len(sources.runtime)} files do not compile, such as {errors[0]}")
    return {"build": "headers only", "compiled_files": len(sources.runtime)}


def row(found: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    first = [found["torch"], found.get("tried", "")]
    if "failure" in found:
        return [*first, found.get("build", ""), "", "", found["failure"]]
    if "checks" not in found:
        files = f"{found['compiled_files']} files compile; not run"
        return [*first, "none for this machine", "", "", files]
    bad = [check["what"] for check in found["checks"] if check["ok"] is False]
    operators = next(check["found"] for check in found["checks"] if "operators" in check["what"])
    seconds = [f"{found[name]} s" for name in ("install_seconds", "build_seconds")]
    return [*first, found["build"], *seconds, f"failed: {', '.join(bad)}" if bad else f"works; {operators}"]


def keep(found: dict[str, Any]) -> None:
    """Put what was found about one version beside what earlier runs found about others, and publish all."""
    path = report.RESULTS / "torch_versions.json"
    earlier = json.loads(path.read_text()) if path.exists() else []
    results = [one for one in earlier if one["torch"] != found["torch"]] + [found]
    results.sort(key=lambda one: [int(part) for part in one["torch"].split(".")])
    path.write_text(json.dumps(results, indent=1) + "\n")
    headings = ["torch", "tried", "build", "pip install", "first remint doctor", "result"]
    report.publish("Versions of torch", report.markdown(headings, [row(one) for one in results]))


def main() -> None:
    """Try and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="version")
    parser.add_argument("--cuda-builds", action="store_true")
    args = parser.parse_args()
    for version in args.versions:
        if shutil.disk_usage(tempfile.gettempdir()).free < FREE_BYTES:
            raise SystemExit(f"less than {FREE_BYTES >> 30} GiB are free in {tempfile.gettempdir()}")
        with tempfile.TemporaryDirectory(prefix="remint-torch-") as folder:
            try:
                found = try_version(version, Path(folder), cuda_builds=args.cuda_builds)
            except Failed as error:
                found = {"torch": version, "failure": str(error).replace(folder, "…").replace(f"{ROOT}/", "")}
        keep(found | {"tried": datetime.datetime.now(tz=datetime.UTC).date().isoformat()})


if __name__ == "__main__":
    main()
