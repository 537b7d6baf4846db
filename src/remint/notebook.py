"""How results look in a notebook: a sentence and a small table, in HTML that needs no style sheet."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def as_html(sentence: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a paragraph and a table; all texts are escaped.

    >>> as_html("Fits.", ["peak"], [["<1 MiB"]])
    '<p>Fits.</p><table><thead><tr><th>peak</th></tr></thead><tbody><tr><td>&lt;1 MiB</td></tr></tbody></table>'
    """

    def line(cells: Iterable[object], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    head = f"<thead>{line(headings, 'th')}</thead>" if headings else ""
    body = "".join(line(row, "td") for row in rows)
    return f"<p>{html.escape(sentence)}</p><table>{head}<tbody>{body}</tbody></table>"
