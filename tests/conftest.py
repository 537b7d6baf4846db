"""Hypothesis: the same examples every time, no deadlines on noisy machines, fewer where a slow build runs again."""

from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.load_profile("default")
