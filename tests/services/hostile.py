"""Values that nobody means, for tests that hand them in wherever people configure or ask something.

The examples of a test are the same in every run; ``DLOCK_FUZZ=100`` takes a hundred times as many.
"""

from __future__ import annotations

import math
import os
import sys
import traceback
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

#: It stands in values; whatever is said about them must not have it.
PASSWORD = "hunter2"

#: No message about a wrong value needs more signs.
LONGEST_MESSAGE = 1000

ADDRESSES = st.sampled_from(
    [
        f"redis://:{PASSWORD}@localhost:6379/0",
        f"{'x' * 200}://u:{PASSWORD}@h",
        f"{'x' * 15_000}://u:{PASSWORD}@h",
        f"redis://h?password={PASSWORD}",
        f"postgresql//u:{PASSWORD}@h/x",
        f"sqlite:///x.db?secret={PASSWORD}",
    ]
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([10**400, -(10**400), sys.maxsize, 2.6e11, 1e-6, math.nan]),
)
TEXTS = st.one_of(
    st.text(),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "Lo"]), max_size=9),
    st.sampled_from(["x" * 15_000, "dlock_" * 3_000, "\ud800", "a\0b", "../..", "{a}", "%s"]),
).filter(lambda text: PASSWORD not in text)  # Hypothesis tries what stands in a source


class Unprintable:
    """Its representation cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("there is none")

    __str__ = __repr__


ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    TEXTS,
    ADDRESSES,
    st.binary(),
    st.builds(Unprintable),
    st.sampled_from([print, Unprintable, timedelta(1), 3j, [[]], [{}], {"url": 3}, range(3)]),
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.sets(st.one_of(NUMBERS, TEXTS, ADDRESSES), max_size=3),
        st.dictionaries(st.one_of(TEXTS, NUMBERS, ADDRESSES), inner, max_size=4),
    ),
    max_leaves=8,
)


def examples(number: int) -> settings:
    """So many of them, always the same."""
    times = int(os.environ.get("DLOCK_FUZZ", "1"))
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    return settings(
        max_examples=number * times,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=slow,
    )


def refused(error: BaseException) -> None:
    """Fail unless *error* says in short what is wrong, without the password."""
    assert len(str(error)) <= LONGEST_MESSAGE, len(str(error))
    told = "".join(traceback.format_exception(error))
    assert PASSWORD not in told + repr(error)
