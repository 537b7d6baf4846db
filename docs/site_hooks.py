"""Hooks of the documentation site: files outside of docs/ that a page links to become part of the site.

In the repository such links are relative, and work on every host. On the site the files are under `repository/`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\]\()\.\./([^)#]+)")
FENCE = re.compile(r"^```(python|sh) [^\n]*$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to, and all results of benchmarks: their pages show pictures from beside them."""
    linked = {target for page in (ROOT / "docs").glob("*.md") for _, target in LINK.findall(page.read_text())}
    paths = {ROOT / target for target in linked} | set((ROOT / "benchmarks" / "results").iterdir())
    for path in sorted(paths):
        name = f"repository/{path.relative_to(ROOT).as_posix()}"
        if path.is_dir():
            lines = [f"- [{entry.name}]({entry.name})\n" for entry in sorted(path.iterdir())]
            files.append(File.generated(config, f"{name}/index.md", content=f"# {path.name}\n\n{''.join(lines)}"))
        elif path.suffix in (".md", ".svg", ".png"):
            files.append(File.generated(config, name, abs_src_path=str(path)))
        else:
            text = f"# {path.name}\n\n```{path.suffix.lstrip('.')}\n{path.read_text()}```\n"
            files.append(File.generated(config, f"{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links out of docs/ to the files that were added, and drop the marks that only the tests read."""
    if page.file.src_uri.startswith("repository/"):
        # Links of these pages beyond their neighbours lead nowhere on the site: keep their texts.
        return re.sub(r"\[([^]]+)\]\((?!http|#)[^)]*/[^)]*\)", r"\1", markdown)

    def led(match: re.Match[str]) -> str:
        target = ROOT / match[2]
        end = "index.md" if target.is_dir() else "" if target.suffix in (".md", ".svg", ".png") else ".md"
        return f"{match[1]}repository/{match[2]}{end}"

    return LINK.sub(led, FENCE.sub(r"```\1", markdown))
