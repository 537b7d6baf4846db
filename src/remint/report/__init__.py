"""What there is to see of runs, plans, traces and sweeps: a page, pictures, and PyTorch's memory viewer."""

from remint.report.figures import write_figure
from remint.report.files import load_items, write
from remint.report.memory_viz import write_snapshot
from remint.report.page import write_html

__all__ = ["load_items", "write", "write_figure", "write_html", "write_snapshot"]
