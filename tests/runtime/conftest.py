import pytest

torch = pytest.importorskip("torch")


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
