"""Which budget to use: looks at a few steps of a program, and simulates them under all budgets."""

from remint.advice.advise import advise

__all__ = ["advise"]
