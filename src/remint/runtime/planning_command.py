"""The command of the process that plans learned steps."""

from __future__ import annotations

import sys
from pathlib import Path


def planning_command() -> list[str]:
    """Return the command that starts `remint.planners.step_planning`; empty where there is no interpreter to start."""
    if not sys.executable:
        return []
    # The package may lie where only this process looks. Modules of the working folder shall not be imported instead.
    folder = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path[0] = {folder!r}; from remint.planners.step_planning import main; main()"
    return [sys.executable, "-c", code]
