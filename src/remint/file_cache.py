"""Files that make a second start quick, in a folder of bounded size. Whatever is wrong with one, it is written anew."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def user_cache_folder() -> Path:
    """Return the folder for the caches of remint."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "remint"


class FileCache:
    """A folder of files by name. The files that nobody has read for longest go when they take too many bytes.

    A folder that cannot be written, or that is None, keeps nothing.
    """

    def __init__(self, folder: Path | None, *, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        if self.folder is None:
            return None
        path = self.folder / name
        try:
            content = path.read_bytes()
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all: several processes may start at once."""
        if self.folder is None or len(content) > self._max_bytes:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(len(content))
            handle, path = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(path, self.folder / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise

    def _make_room(self, nbytes: int) -> None:
        assert self.folder is not None
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        total = nbytes + sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
