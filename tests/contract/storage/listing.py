"""Keys of any name: apart from each other, listed page by page, and seen as they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from celery_dlock.core.state import WINDOW, Busy, KeyState, Left, NotHeld, Outcome, WaitMode
from celery_dlock.stores.base import BackendOptions, LockBackend, Swept, Wake
from celery_dlock.testing.contract import listing as shipped
from celery_dlock.testing.contract.listing import ODD
from celery_dlock.testing.contract.words import (
    PLACE,
    QUEUE,
    claim,
    listed_keys,
    pages_of,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock

#: What a web page or a template can make of a key, and a person has to read.
HOSTILE = [
    *ODD,
    *("", "\n", "{" * 9, "}:state", "<script>alert(1)</script>", "\u202e", "\u9396" * 1365),
]


class KeysTests(shipped.KeysTests):
    def test_two_keys_are_held_at_once_and_released_apart(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a", key="one")))
        running(backend.enter(claim("b", key="other")))

        backend.leave(claim("a", key="one"), Outcome.OVER)

        assert isinstance(backend.enter(claim("c", key="other")).verdict, Busy)
        running(backend.enter(claim("c", key="one")))

    def test_keys_of_odd_characters_have_queues_of_their_own(self, backend: LockBackend) -> None:
        for key in ODD:
            backend.enter(claim("a", key=key))
            park(backend, "b", key=key)

        for key in ODD:
            assert backend.leave(claim("a", key=key), Outcome.DONE).wakes == (
                Wake(key, "b", b"message of b"),
            )

    def test_tasks_and_nonces_of_odd_characters_are_told_apart(self, backend: LockBackend) -> None:
        for one, other in pairwise(ODD):
            running(backend.enter(claim(one, nonce=one, key=one)))

            for wrong in (claim(one, other, key=one), claim(other, one, key=one)):
                assert isinstance(backend.leave(wrong, Outcome.OVER).verdict, NotHeld)

            assert isinstance(backend.leave(claim(one, one, key=one), Outcome.OVER).verdict, Left)

    def test_the_queue_tells_tasks_of_odd_characters_apart(self, backend: LockBackend) -> None:
        backend.enter(claim("holder", limit=1))
        for number, task in enumerate(ODD):
            backend.enter(claim(task, wait=QUEUE), str(number).encode())

        wakes = backend.leave(claim("holder"), Outcome.OVER).wakes
        for number, task in enumerate(ODD):
            assert wakes == (Wake("key", task, str(number).encode()),)
            running(backend.enter(claim(task, wait=QUEUE)))
            wakes = backend.leave(claim(task), Outcome.DONE).wakes


HOSTILE_CURSORS = [
    *("x", "0", "-1", ">", "h", "h-1", f"h{2**64}", "w64:0", "w0:", "c0:0:0:", "n0:0"),
    *("c0:0:0:169.254.169.254:80", "h1\n", "h\u0661", ">\ud800", "\ud800", "\0", "*", "9" * 5000),
    "../../etc/passwd",
    *HOSTILE[1:],
]


class Listing(shipped.Listing):
    def test_where_nothing_is_in_use_no_key_is_told(self, backend: LockBackend) -> None:
        for waiting in (False, True):
            assert pages_of(backend, 100, waiting=waiting) == []

    def test_a_key_for_which_a_place_is_kept_is_told(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        backend.enter(claim("b", wait=PLACE))

        backend.leave(claim("a"), Outcome.DONE)

        assert listed_keys(backend) == ["key"]
        assert listed_keys(backend, waiting=True) == []

    def test_keys_of_odd_characters_are_told_by_their_names(self, backend: LockBackend) -> None:
        for number, key in enumerate(HOSTILE):
            running(backend.enter(claim("a", key=key)))
            if number % 2:
                park(backend, "b", key=key)

        for limit in (7, 1000):
            assert listed_keys(backend, limit) == sorted(HOSTILE)
            assert listed_keys(backend, limit, waiting=True) == sorted(HOSTILE[1::2])

    def test_keys_of_two_prefixes_are_listed_apart(
        self, backend: LockBackend, url: str, options: BackendOptions
    ) -> None:
        parts = [":key", ":1:{1}:{x", "*", "?", "[a]", "\\", "/1/version", ",1", "{", "}"]
        prefixes = [options.prefix + part for part in parts]
        others = [
            self.backend_class.from_url(url, replace(options, prefix=prefix)) for prefix in prefixes
        ]
        stores = [backend, *others]
        for number, store in enumerate(stores):
            running(store.enter(claim("a", key=f"key {number}")))
            park(store, "b", key=f"key {number}")

        for number, store in enumerate(stores):
            for waiting in (False, True):
                assert listed_keys(store, waiting=waiting) == [f"key {number}"]
            first, second = store.look([f"key {number}", f"key {number - 1}"])
            assert first.holders
            assert second == KeyState()
        for other in others:
            other.close()

    @pytest.mark.parametrize("waiting", [False, True])
    def test_a_cursor_that_no_page_gave_is_refused_or_begins_somewhere(
        self, backend: LockBackend, waiting: bool
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")

        for cursor in HOSTILE_CURSORS:
            try:
                page = backend.keys(cursor, waiting=waiting)
            except ValueError:
                continue
            assert set(page.keys) <= {"key"}
        assert listed_keys(backend, waiting=waiting) == ["key"]

    def test_a_word_is_no_cursor(self, backend: LockBackend) -> None:
        for waiting in (False, True):
            with pytest.raises(ValueError, match="cursor"):
                backend.keys("nonsense", waiting=waiting)


def seen(state: KeyState) -> KeyState:
    """What a look must tell."""
    head = state.waiting[:WINDOW]
    return replace(state, waiting=head, first=0, last=0)


class Looking(shipped.Looking):
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

    def test_holders_and_who_was_woken_are_seen_as_the_whole_key_has_them(
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

    def test_the_first_of_a_queue_are_read_as_many_as_asked_for(self, backend: LockBackend) -> None:
        running(backend.enter(claim("holder")))
        tasks = [f"w{n}" for n in range(WINDOW + 8)]
        park(backend, *tasks)

        for limit in (1, WINDOW, WINDOW + 3, 1000):
            state = backend.peek("key", limit)
            assert [entry.task for entry in state.waiting] == tasks[:limit]
            assert [holder.task for holder in state.holders] == ["holder"]
            assert state.parked == len(tasks)
        assert backend.peek("nobody's", 10) == KeyState()

    def test_a_task_is_told_where_it_stands(self, backend: LockBackend) -> None:
        running(backend.enter(claim("holder")))
        backend.enter(claim("place", wait=PLACE))
        tasks = [f"w{n}" for n in range(2 * WINDOW)]
        park(backend, *tasks)

        whole = {entry.task: entry for entry in backend.peek("key").waiting}
        for task, before in (("place", 0), ("w0", 1), (tasks[-1], 2 * WINDOW)):
            assert backend.position("key", task) == (whole[task], before)
        assert backend.position("key", "holder") is None
        assert backend.position("another", "w0") is None

    def test_a_task_whose_turn_has_come_stands_in_no_queue(self, backend: LockBackend) -> None:
        running(backend.enter(claim("holder")))
        park(backend, "a", "b")

        assert woken(backend.leave(claim("holder"), Outcome.DONE)) == ["a"]

        assert backend.position("key", "a") is None
        entry, before = backend.position("key", "b") or (None, -1)
        assert (entry, before) == (backend.peek("key").waiting[0], 0)

    def test_a_place_that_has_expired_is_not_seen(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        backend.enter(claim("short", wait=PLACE, patience=10))
        backend.enter(claim("long", wait=PLACE, patience=20))

        clock.advance(10)
        (state,) = backend.look(["key"])

        assert [entry.task for entry in state.waiting] == ["long"]
        assert not state.parked

    def test_a_key_seen_by_each_kind_of_wait_is_as_an_operation_finds_it(
        self, backend: LockBackend
    ) -> None:
        for one, other in pairwise(WaitMode):
            running(backend.enter(claim("a", key=f"{one} {other}")))
            for wait in (one, other):
                backend.enter(claim(f"{wait} b", key=f"{one} {other}", wait=wait), b"message")
        keys = [f"{one} {other}" for one, other in pairwise(WaitMode)]

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
