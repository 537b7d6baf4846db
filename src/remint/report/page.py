"""One HTML file with everything in it: no server, no network."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from remint.report.data import Item, page_data


def write_html(
    path: str | os.PathLike[str],
    items: Sequence[Item] | Mapping[str, Item],
    *,
    title: str | None = None,
    groups: Mapping[str, str] | None = None,
) -> None:
    """Write a page about `items`: runs, plans, sweeps, traces and advice, by name if they have one.

    `groups` gives the group of named items: only items of one group are compared, and they stand together.

    >>> import tempfile, os
    >>> from remint import generators, simulate
    >>> run = simulate(generators.unet(3), budget="60%", policy="coop", memory="arena", blocks=True)
    >>> path = os.path.join(tempfile.mkdtemp(), "run.html")
    >>> write_html(path, [run])
    >>> open(path).read().startswith("<!doctype html>")
    True
    """
    data = page_data(items, title=title, groups=groups)
    parts = {
        "title": html.escape(data["title"]),
        "style": _asset("page.css"),
        # "</" would end the script it stands in.
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("</", "<\\/"),
        "script": _asset("page.js"),
    }
    page = _asset("page.html")
    for name, text in parts.items():
        before, after = page.split("{{%s}}" % name)  # noqa: UP031 (braces)
        page = before + text + after
    Path(path).write_text(page, encoding="utf-8")


def _asset(name: str) -> str:
    return files("remint.report").joinpath(name).read_text(encoding="utf-8")
