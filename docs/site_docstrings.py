"""Shows the examples of docstrings as code on the documentation site, where `>>>` would be three quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

# From a line with >>> to the next empty line, as doctest reads it.
EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)


class Examples(griffe.Extension):
    """Fences the examples of each docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """An object was read: change its docstring."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
