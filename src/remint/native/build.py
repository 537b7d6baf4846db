"""One build of `remint._torch` for each torch, kept in a folder of the user.

Several processes may ask at once, the ranks of a distributed run for example: one builds, the others wait for its lock.
The module appears under its name only when it is complete.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from remint.file_cache import user_cache_folder
from remint.native.compiler import BuildError, Compiler, TorchInstallation, num_jobs
from remint.native.progress import Progress
from remint.native.sources import Sources
from remint.version import __version__

__all__ = ["BuildError", "TorchInstallation", "built_module", "cache_folder"]


def built_module(torch: TorchInstallation, sources: Sources, *, again: bool = False) -> Path:
    """Return the path of `remint._torch` for this torch, which is built if it is not there yet, or `again`."""
    folder = cache_folder() / _key(torch, sources)
    module = folder / f"_torch{sysconfig.get_config_var('EXT_SUFFIX')}"
    if module.exists() and not again:
        return module
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(
            f"remint keeps the runtime that it builds in {folder}, and cannot write there: {error.strerror}. Set "
            "XDG_CACHE_HOME to a folder that can be written, then run: remint build"
        ) from error
    asked = time.time()
    with _locked(folder / "lock"):
        # Another process may have built it in the meantime.
        if not module.exists() or (again and module.stat().st_mtime < asked):
            _build(torch, sources, module)
    return module


def cache_folder() -> Path:
    """Return the folder of all builds of this user."""
    return user_cache_folder()


def _key(torch: TorchInstallation, sources: Sources) -> str:
    abi = f"{sysconfig.get_config_var('SOABI')}-cxx11abi{int(torch.cxx11_abi)}{'-cuda' if sources.cuda else ''}"
    return f"remint-{__version__}-torch-{torch.version}-{abi}-{sources.digest[:12]}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The lock ends with the process that has it, however it ends.
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("remint: waiting for another process that builds the runtime", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(torch: TorchInstallation, sources: Sources, module: Path) -> None:
    compiler = Compiler.find(torch, sources.folder)
    log = module.parent / "build.log"
    log.unlink(missing_ok=True)
    # Beside the module: a rename is atomic only within one file system.
    objects = Path(tempfile.mkdtemp(prefix="objects-", dir=module.parent))
    try:
        with Progress(f"building the runtime for torch {torch.version}", len(sources.engine + sources.runtime)) as done:
            made = _compile_all(compiler, sources, objects, done, log)
            _run(compiler.link(made, torch, objects / module.name), log)
        os.replace(objects / module.name, module)
    finally:
        shutil.rmtree(objects, ignore_errors=True)


def _compile_all(compiler: Compiler, sources: Sources, objects: Path, done: Progress, log: Path) -> list[Path]:
    header = objects / "precompiled.h"
    header.write_text('#include "torch/precompiled.h"\n')

    def output(path: Path) -> Path:
        return objects / f"{'-'.join(path.with_suffix('').parts)}.o"

    def compile_one(path: Path, precompiled: Path | None) -> None:
        _run(compiler.compile(sources.folder / path, output(path), precompiled=precompiled), log)

    with ThreadPoolExecutor(num_jobs()) as jobs:
        try:
            precompiling = jobs.submit(_run, compiler.precompile(header), log) if compiler.is_gcc else None
            waiting = [jobs.submit(compile_one, path, None) for path in sources.engine]
            if precompiling is not None:
                precompiling.result()
            waiting += [jobs.submit(compile_one, path, header if compiler.is_gcc else None) for path in sources.runtime]
            for finished in as_completed(waiting):
                finished.result()
                done.one_more()
        except BaseException:
            jobs.shutdown(cancel_futures=True)
            raise
    return [output(path) for path in [*sources.engine, *sources.runtime]]


def _run(command: list[str], log: Path) -> None:
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if finished.returncode == 0:
        return
    with log.open("a") as file:
        file.write(f"{shlex.join(command)}\n{finished.stdout}\n")
    errors = [line for line in finished.stdout.splitlines() if "error" in line]
    raise BuildError(
        f"the runtime of remint could not be built: {errors[0] if errors else 'the compiler failed'}. All of the "
        f"compiler's output is in {log}. remint needs a compiler for C++20, such as g++ 10 or newer: name it in the "
        "environment variable CXX, then run: remint build"
    )
