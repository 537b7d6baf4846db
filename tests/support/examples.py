"""How many examples Hypothesis tries, in proportion to the profile."""

from typing import Any

from hypothesis import settings


def examples(count: int, **others: Any) -> settings:
    """`count` examples in the default profile; in another one more or fewer, as many times as its own number says.

    A plain `settings(max_examples=count)` would override the profile.
    """
    default = settings.get_profile("default").max_examples
    return settings(max_examples=max(4, count * settings().max_examples // default), **others)
