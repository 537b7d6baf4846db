"""SIGTERM as an exception: what was going on cleans up after itself, and a command can still print what it has."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(SystemExit):
    """The process was asked to end."""


@contextmanager
def raises_on_sigterm() -> Iterator[None]:
    """Raise `Terminated` if SIGTERM comes."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def outlives_sigterm() -> Iterator[None]:
    """Go on when SIGTERM comes: what is left to do is short. Inside, `raises_on_sigterm` still works."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)
