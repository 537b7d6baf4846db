"""The progress of a build on stderr: one line that counts in a terminal, a first and a last line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType


class Progress:
    """Says what is done, how far it is, and how long it took."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._began = time.perf_counter()

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._show("")
        else:
            print(f"remint: {self._what}, once; this takes a few minutes", file=sys.stderr, flush=True)
        return self

    def one_more(self) -> None:
        """Count one."""
        self._done += 1
        if sys.stderr.isatty():
            self._show("")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        seconds = f"{time.perf_counter() - self._began:.0f} s"
        if error is not None:
            if sys.stderr.isatty():
                print(file=sys.stderr)
        elif sys.stderr.isatty():
            self._show(f", {seconds}\n")
        else:
            print(f"remint: built the runtime in {seconds}", file=sys.stderr, flush=True)

    def _show(self, end: str) -> None:
        text = f"\rremint: {self._what}, once: {self._done} of {self._total} files{end}"
        print(text, end="", file=sys.stderr, flush=True)
