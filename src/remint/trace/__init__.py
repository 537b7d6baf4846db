"""Traces: what a program asked for, as a stream of events, from recordings, files, DTR's logs and generators."""

from remint.trace.builder import TraceBuilder
from remint.trace.trace import Trace

__all__ = ["Trace", "TraceBuilder"]
