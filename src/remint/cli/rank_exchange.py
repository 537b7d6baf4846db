"""What the ranks of one run tell rank 0 at their end, through the store of their launcher.

No collective is used: a rank may have failed, and the program's own process group may be gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import zlib
from typing import Any

from remint.cli.termination import Terminated, raises_on_sigterm
from remint.runtime.rank import Rank, Store, store_of_ranks

# A store takes values of at most 8 MiB.
_PIECE = 4 << 20
# A rank that failed does not wait longer for the others: the launcher ends them once it has ended.
_PATIENCE_AFTER_FAILURE = 5.0


class RankExchange:
    """Leaves the data of this rank for the others, and collects those of all ranks; a subject keeps its keys apart."""

    def __init__(self, rank: Rank, store: Store, subject: str) -> None:
        self._rank = rank
        self._store = store
        self._subject = subject

    def _key(self, rank: int, name: object) -> str:
        return f"{self._subject}/{rank}/{name}"

    def first_says(self, text: str) -> str:
        """Return on all ranks what rank 0 says here."""
        key = self._key(0, "first")
        if self._rank.number == 0:
            self._store.set(key, text)
        return self._store.get(key).decode()

    def send(self, data: dict[str, Any]) -> None:
        """Leave plain data for the others."""
        packed = zlib.compress(json.dumps(data).encode(), 1)
        pieces = [packed[k : k + _PIECE] for k in range(0, len(packed), _PIECE)]
        for number, piece in enumerate(pieces):
            self._store.set(self._key(self._rank.number, number), piece)
        # The last key says that all others are there.
        self._store.set(self._key(self._rank.number, "pieces"), str(len(pieces)))

    def collect(self, *, failed: bool) -> dict[int, dict[str, Any]]:
        """Wait for the other ranks; return what each has sent. After a failure some may be missing."""
        missing = set(range(self._rank.count))
        end = time.monotonic() + _PATIENCE_AFTER_FAILURE if failed else None
        tell = time.monotonic() + 10
        # The store is gone when its process is: then nobody sends any more. So it is when the launcher ends this rank.
        with contextlib.suppress(RuntimeError, Terminated), raises_on_sigterm():
            while missing:
                missing = {rank for rank in missing if not self._store.check([self._key(rank, "pieces")])}
                if not missing or (end is not None and time.monotonic() > end):
                    break
                if time.monotonic() > tell:
                    tell = float("inf")
                    text = ", ".join(map(str, sorted(missing)))
                    print(f"remint: {self._rank} has ended and waits for the figures of rank {text}.", file=sys.stderr)
                time.sleep(0.05)
        return {rank: self._received(rank) for rank in range(self._rank.count) if rank not in missing}

    def _received(self, rank: int) -> dict[str, Any]:
        count = int(self._store.get(self._key(rank, "pieces")))
        packed = b"".join(self._store.get(self._key(rank, number)) for number in range(count))
        data: dict[str, Any] = json.loads(zlib.decompress(packed))
        return data


def path_of_rank(path: str, rank: Rank) -> str:
    """Return the file of one rank: `run.json` becomes `run.3.json`.

    >>> path_of_rank("results/run.json", Rank(3, 8)), path_of_rank("run", Rank(0, 2))
    ('results/run.3.json', 'run.0')
    """
    root, suffix = os.path.splitext(path)
    return f"{root}.{rank.number}{suffix}"


def launchers_store(why: str) -> Store:
    """Return what the ranks can tell each other through; `why` they have to."""
    store = store_of_ranks()
    if store is None:
        raise ValueError(f"{why}, and these ranks have no store of torchrun's: start them by torchrun")
    return store


def trial_environment(exchange: RankExchange) -> dict[str, str]:
    """Return the environment of processes that try the script out, one for each rank.

    Their process groups meet at a port of their own: what they leave behind is not seen by the real ones.
    """
    port = exchange.first_says(str(_free_port()))
    return {**os.environ, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "False"}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
