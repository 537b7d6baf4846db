"""The C++ sources of `remint._torch`: inside an installed package, or in a checkout."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
# In a checkout these lie beside the sources of `remint._torch`. A wheel leaves their .cpp files out.
_OF_OTHER_MODULES = ("bindings", "planner", "testing")


@dataclass(frozen=True)
class Sources:
    """The folder `csrc`."""

    folder: Path
    cuda: bool = False  # with the CUDA backend

    @classmethod
    def find(cls, *, cuda: bool = False) -> Sources:
        """Return the sources that came with this package."""
        places = [_PACKAGE / "csrc", _PACKAGE.parent.parent / "csrc"]
        for place in places:
            if (place / "torch").is_dir():
                return cls(place, cuda)
        raise FileNotFoundError(f"the C++ sources of remint are missing: there is no folder {places[0]}")

    @cached_property
    def engine(self) -> list[Path]:
        """The files that do not include torch."""
        return [path for path in self._found("*.cpp") if path.parts[0] not in (*_OF_OTHER_MODULES, "torch")]

    @cached_property
    def runtime(self) -> list[Path]:
        """The files that include torch, the largest first: they take longest."""
        files = [path for path in self._found("*.cpp") if path.parts[0] == "torch"]
        if not self.cuda:
            files = [path for path in files if path.parts[:3] != ("torch", "backends", "cuda")]
        return sorted(files, key=lambda path: -(self.folder / path).stat().st_size)

    @cached_property
    def digest(self) -> str:
        """A hash of all that is compiled."""
        digest = hashlib.sha256()
        for path in sorted([*self.engine, *self.runtime, *self._found("*.h")]):
            content = (self.folder / path).read_bytes()
            digest.update(f"{path.as_posix()} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    def _found(self, pattern: str) -> list[Path]:
        return sorted(path.relative_to(self.folder) for path in self.folder.rglob(pattern))
