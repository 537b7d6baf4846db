import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
# The shared modules (models, training, random_tensors) are in the folder of the older tests.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "online")]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests counted, also if they ran in several processes."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = [value for report in reports for name, value in report.user_properties if name == "count"]
    if lines:
        terminalreporter.section("counts")
        for line in sorted(lines):
            terminalreporter.write_line(line)
