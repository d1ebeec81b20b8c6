"""Whatever comes when, a debounced call is followed by a run that has seen it, and in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dlock.core.canonical import canonical
from celery_dlock.core.debounce import DEBOUNCED, named
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.testing import ManualClock

DELAY, MOST = 5, 12
SECOND = 1_000_000
KEY = f"{DEBOUNCED}save(doc:7)"


@given(
    steps=st.lists(st.sampled_from(["call", "call", "take", "pass", "pass"]), max_size=60),
    prompt=st.booleans(),
)
def test_no_call_is_lost_and_none_is_late(steps: list[str], prompt: bool) -> None:
    """A worker sweeps each second; who is woken is taken at once (*prompt*), or some time later."""
    clock, woken = ManualClock(), dict[str, int]()
    store = MemoryBackend(BackendOptions(clock=clock))
    calls: list[int] = []
    runs: list[tuple[int, int]] = []

    def take() -> None:
        while woken:
            task, number = woken.popitem()
            runs.append((number, clock() // SECOND))
            store.leave(Claim(KEY, task, "", ttl=0), Outcome.OVER)

    for step in [*steps, *["pass", "take"] * (MOST + DELAY + 1)]:
        if step == "call":
            claim = Claim(KEY, f"t{len(calls)}:0:0", "", ttl=0)
            store.postpone(claim, b"%d" % len(calls), DELAY * SECOND, MOST * SECOND)
            calls.append(clock() // SECOND)
        elif step == "pass":
            clock.advance(1)
            woken |= {wake.task: int(wake.message) for wake in store.sweep().wakes}
        if step == "take" or prompt:
            take()

    first = 0
    for number, at in runs:
        due = min(calls[number] + DELAY, calls[first] + MOST)
        assert at == due if prompt else at >= due
        first = number + 1
    assert first == len(calls), "each call is followed by a run of its message, or a newer one"
    assert store.keys().keys == ()


def test_no_lock_has_the_key_of_a_debounced_call() -> None:
    assert canonical(KEY) != KEY
    assert named(KEY) == KEY
    assert named("order 42") == canonical("order 42")
    with pytest.raises(ConfigurationError):
        named(DEBOUNCED)
