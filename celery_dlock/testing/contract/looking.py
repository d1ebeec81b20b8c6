"""Each key is seen as an operation would find it, and many at once; a look changes nothing."""

from __future__ import annotations

from itertools import pairwise

from celery_dlock.backends.base import LockBackend, Swept
from celery_dlock.core.state import WINDOW, KeyState, Outcome, Wait
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.keys import HOSTILE
from celery_dlock.testing.contract.listing import told
from celery_dlock.testing.contract.words import (
    PLACE,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)


def seen(state: KeyState) -> KeyState:
    """What a look must tell."""
    return KeyState(state.holders, state.grants, state.waiting[:WINDOW], state.parked)


class Looking(StoreUnderTest):
    def test_keys_of_odd_characters_are_seen_each_with_its_own(self, backend: LockBackend) -> None:
        for number, key in enumerate(HOSTILE):
            running(backend.enter(claim(f"holder {number}", key=key)))
            park(backend, f"waits {number}", key=key)

        states = backend.look(HOSTILE)

        for number, (key, state) in enumerate(zip(HOSTILE, states, strict=True)):
            for found in (state, backend.peek(key)):
                assert [holder.task for holder in found.holders] == [f"holder {number}"], key
                assert [entry.task for entry in found.waiting] == [f"waits {number}"], key
                assert found.parked == 1

    def test_each_key_is_seen_in_its_place(self, backend: LockBackend) -> None:
        for key in ("one", "two", "three"):
            running(backend.enter(claim(f"holder of {key}", key=key)))
        keys = ["two", "nobody's", "one", "two", "three"]

        tasks = [[holder.task for holder in state.holders] for state in backend.look(keys)]

        assert tasks == [[f"holder of {key}"] if key != "nobody's" else [] for key in keys]
        assert backend.look(["nobody's"]) == [KeyState()]
        assert backend.look([]) == []

    def test_more_keys_than_fit_into_one_request_are_seen(self, backend: LockBackend) -> None:
        used = [f"key {n}" for n in range(0, 301, 10)]
        for key in used:
            running(backend.enter(claim(f"holder of {key}", key=key)))
        keys = [f"key {n}" for n in range(301)]

        states = backend.look(keys)

        assert len(states) == len(keys)
        for key, state in zip(keys, states, strict=True):
            expected = [f"holder of {key}"] if key in used else []
            assert [holder.task for holder in state.holders] == expected

    def test_holders_and_who_was_called_are_seen_as_the_whole_key_has_them(
        self, backend: LockBackend
    ) -> None:
        for task in ("a", "b", "c"):
            running(backend.enter(claim(task, limit=3)))
        park(backend, "d", "e", "f", "g", limit=3)
        backend.leave(claim("a"), Outcome.DONE)
        backend.cancel("key", "f")

        (state,) = backend.look(["key"])

        assert seen(state) == seen(backend.peek("key"))
        assert [holder.task for holder in state.holders] == ["b", "c"]
        assert all(holder.token for holder in state.holders)
        assert sorted(grant.task for grant in state.grants) == ["d", "f"]
        assert [entry.task for entry in state.waiting] == ["e", "g"]
        assert state.parked == 2

    def test_of_a_long_queue_the_head_is_seen_and_all_are_counted(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("holder")))
        park(backend, *(f"w{n}" for n in range(WINDOW + 8)))

        (state,) = backend.look(["key"])

        assert seen(state) == seen(backend.peek("key"))
        assert [entry.task for entry in state.waiting] == [f"w{n}" for n in range(WINDOW)]
        assert state.parked == WINDOW + 8

    def test_a_place_that_has_lapsed_is_not_seen(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        backend.enter(claim("short", wait=PLACE, patience=10))
        backend.enter(claim("long", wait=PLACE, patience=20))

        clock.advance(10)
        (state,) = backend.look(["key"])

        assert [entry.task for entry in state.waiting] == ["long"]
        assert not state.parked

    def test_to_list_and_to_look_changes_nothing(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=10)))
        park(backend, "b", gives_up=5)
        backend.enter(claim("c", wait=PLACE, patience=10))
        clock.advance(11)
        before = backend.peek("key")

        for waiting in (False, True):
            assert told(backend, waiting=waiting) == ["key"]
        (state,) = backend.look(["key"])

        assert backend.peek("key") == before
        assert [entry.task for entry in state.waiting] == ["b"]
        assert woken(backend.sweep()) == ["b"]

    def test_a_key_seen_by_each_kind_of_wait_is_as_an_operation_finds_it(
        self, backend: LockBackend
    ) -> None:
        for one, other in pairwise(Wait):
            running(backend.enter(claim("a", key=f"{one} {other}")))
            for wait in (one, other):
                backend.enter(claim(f"{wait} b", key=f"{one} {other}", wait=wait), b"message")
        keys = [f"{one} {other}" for one, other in pairwise(Wait)]

        for key, state in zip(keys, backend.look(keys), strict=True):
            assert seen(state) == seen(backend.peek(key))

    def test_an_idle_store_stays_idle_when_it_is_looked_at(self, backend: LockBackend) -> None:
        backend.look(["key", "other"])
        backend.keys()

        assert backend.sweep() == Swept((), None)
        assert backend.peek("key") == KeyState()

    def test_its_clock_is_the_one_by_which_it_tells_instants(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for _ in range(2):
            running(backend.enter(claim("a")))
            (holder,) = backend.peek("key").holders

            assert backend.now() == holder.since

            backend.leave(claim("a"), Outcome.OVER)
            clock.advance(3600)
