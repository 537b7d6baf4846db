"""Hypothesis: no deadlines, since machines are noisy; fewer examples where a slow build runs the tests again."""

from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.load_profile("default")
