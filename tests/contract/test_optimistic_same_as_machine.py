"""Rows with optimistic commits are held to the machine: the same operations, the same answers.

And so they are when others come in between: a commit that has to be tried again gives the verdict
of the moment at which it happens.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_dlock.core.state import WINDOW
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.consensus.rows import Commit
from celery_dlock.stores.memory import MemoryBackend
from tests.contract import twin_examples as examples
from tests.contract.memory_rows import RowsBackend
from tests.contract.twins import (
    Clock,
    Crowd,
    Twin,
    assert_alike,
    crowded,
    crowds,
    operations,
    single,
)

Operations = list[tuple[Any, ...]]

_numbers = itertools.count()


def _options(clock: Clock) -> BackendOptions:
    return BackendOptions(prefix=f"rows-twin{next(_numbers)}", clock=clock)


def _rows(options: BackendOptions) -> closing[RowsBackend]:
    return closing(RowsBackend(options))


@settings(max_examples=100, deadline=None)
@given(ops=st.lists(operations, min_size=40, max_size=80))
def test_it_answers_as_the_machine_does(ops: Operations) -> None:
    clock = Clock()
    with _rows(_options(clock)) as rows:
        assert_alike(Twin(MemoryBackend(_options(clock))), Twin(rows), clock, ops)


def test_it_answers_as_the_machine_does_where_chance_seldom_goes() -> None:
    for ops in examples.ALL.values():
        clock = Clock()
        with _rows(_options(clock)) as rows:
            assert_alike(Twin(MemoryBackend(_options(clock))), Twin(rows), clock, ops)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    limit=st.sampled_from([1, 3, WINDOW + 10]),
    crowd=crowds(2 * WINDOW + 10),
    ops=st.lists(operations, min_size=10, max_size=40),
)
@example(limit=WINDOW + 10, crowd=examples.CROWD, ops=examples.ALL_FREE_AT_ONCE)
@example(limit=1, crowd=examples.CROWD, ops=examples.FAR_BACK)
def test_long_queues_are_as_in_the_machine(limit: int, crowd: Crowd, ops: Operations) -> None:
    clock = Clock()
    with _rows(_options(clock)) as rows:
        assert_alike(
            Twin(MemoryBackend(_options(clock))), Twin(rows), clock, crowded(limit, crowd, ops)
        )


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(ops=st.lists(st.tuples(operations, single, single), min_size=20, max_size=30))
def test_who_is_overtaken_seems_to_have_come_later(ops: list[tuple[tuple[Any, ...], ...]]) -> None:
    """Two stores on the same rows: whenever one is about to commit, the other does something."""
    clock = Clock()
    options = _options(clock)
    with _rows(options) as rows, _rows(options) as other_rows:
        machine, one = Twin(MemoryBackend(options)), Twin(rows)
        other = Twin(other_rows)
        other.tokens = one.tokens
        for before, slow, fast in ops:
            assert_alike(machine, one, clock, [before])
            overtaken: list[object] = []

            def overtake(commit: Commit, fast: Any = fast, answers: Any = overtaken) -> None:
                rows.rows.before_commit = lambda commit: None
                answers.append(other.apply(*fast))

            rows.rows.before_commit = overtake
            answer = one.apply(*slow)
            assert [machine.apply(*fast)] == overtaken, fast
            assert machine.apply(*slow) == answer, (slow, fast)
            assert one.state(clock.now) == machine.state(clock.now), (slow, fast)
            assert one.store.dead() == machine.store.dead(), (slow, fast)
