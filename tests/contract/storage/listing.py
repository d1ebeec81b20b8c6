"""Keys of any name: apart from each other, listed page by page, and seen as they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from celery_dlock.core.state import WINDOW, KeyState, Left, NotHeld, WaitMode
from celery_dlock.stores.base import BackendOptions, LockBackend, Swept, Wake
from celery_dlock.testing.contract import listing as shipped
from celery_dlock.testing.contract.listing import ODD
from celery_dlock.testing.contract.words import PLACE, QUEUE, claim, listed_keys, park, running
from tests.contract.key import OVER, Key, KeyTests, message_of

#: What a web page or a template can make of a key, and a person has to read.
HOSTILE = [
    *ODD,
    *("", "\n", "{" * 9, "}:state", "<script>alert(1)</script>", "\u202e"),
]


class KeysTests(KeyTests, shipped.KeysTests):
    def test_keys_of_odd_characters_have_queues_of_their_own(self, key: Key) -> None:
        keys = [Key(key.backend, key.clock, name) for name in ODD]
        for one in keys:
            one.runs("a")
            one.parks("b")

        for one in keys:
            assert one.leave("a").wakes == (Wake(one.name, "b", message_of("b")),)

    def test_tasks_and_nonces_of_odd_characters_are_told_apart(self, key: Key) -> None:
        for one, other in pairwise(ODD):
            named = Key(key.backend, key.clock, one)
            named.runs(one, nonce=one)

            assert isinstance(named.leave(one, OVER, nonce=other).verdict, NotHeld)
            assert isinstance(named.leave(other, OVER, nonce=one).verdict, NotHeld)

            assert isinstance(named.leave(one, OVER, nonce=one).verdict, Left)

    def test_the_queue_tells_tasks_of_odd_characters_apart(self, key: Key) -> None:
        key.runs("holder")
        key.parks(*ODD)

        task = "holder"
        for following in ODD:
            assert key.leave(task).wakes == (Wake("key", following, message_of(following)),)
            key.runs(following, wait=QUEUE)
            task = following


HOSTILE_CURSORS = [
    *("x", "0", "-1", ">", "h", "h-1", f"h{2**64}", "w64:0", "w0:", "c0:0:0:", "n0:0"),
    *("c0:0:0:169.254.169.254:80", "h1\n", "h\u0661", ">\ud800", "\ud800", "\0", "*", "9" * 5000),
    "../../etc/passwd",
    *HOSTILE[1:],
]


class Listing(KeyTests, shipped.Listing):
    def test_a_key_for_which_a_place_is_kept_is_told(self, key: Key) -> None:
        key.runs("a")
        key.refuses("b", wait=PLACE)

        key.leaves("a")

        assert listed_keys(key.backend) == ["key"]
        assert listed_keys(key.backend, waiting=True) == []

    def test_keys_of_odd_characters_are_told_by_their_names(self, backend: LockBackend) -> None:
        for waiting in (False, True):
            assert listed_keys(backend, waiting=waiting) == []
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

    def test_a_cursor_that_no_page_gave_is_refused_or_begins_somewhere(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")

        for waiting in (False, True):
            with pytest.raises(ValueError, match="cursor"):
                key.backend.keys("nonsense", waiting=waiting)
            for cursor in HOSTILE_CURSORS:
                try:
                    page = key.backend.keys(cursor, waiting=waiting)
                except ValueError:
                    continue
                assert set(page.keys) <= {"key"}
            assert listed_keys(key.backend, waiting=waiting) == ["key"]


def seen(state: KeyState) -> KeyState:
    """What a look must tell."""
    head = state.waiting[:WINDOW]
    return replace(state, waiting=head, first=0, last=0)


class Looking(KeyTests, shipped.Looking):
    def test_each_key_is_seen_in_its_place_whatever_its_name(self, backend: LockBackend) -> None:
        for number, key in enumerate(HOSTILE):
            running(backend.enter(claim(f"holder {number}", key=key)))
            park(backend, f"waits {number}", key=key)
        keys = [*HOSTILE, "nobody's", *HOSTILE[:3]]

        states = dict(enumerate(backend.look(keys)))

        assert states.pop(len(HOSTILE)) == KeyState()
        for place, state in states.items():
            number = HOSTILE.index(keys[place])
            for found in (state, backend.peek(keys[place])):
                assert [holder.task for holder in found.holders] == [f"holder {number}"]
                assert [entry.task for entry in found.waiting] == [f"waits {number}"]
                assert found.parked == 1
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

    def test_holders_and_who_was_woken_are_seen_as_the_whole_key_has_them(self, key: Key) -> None:
        key.runs("a", "b", "c", limit=3)
        key.parks("d", "e", "f", "g", limit=3)
        key.leaves("a")
        key.cancels("f")

        (state,) = key.backend.look(["key"])

        assert seen(state) == seen(key.backend.peek("key"))
        assert [holder.task for holder in state.holders] == ["b", "c"]
        assert all(holder.token for holder in state.holders)
        assert sorted(grant.task for grant in state.grants) == ["d", "f"]
        assert [entry.task for entry in state.waiting] == ["e", "g"]
        assert state.parked == 2

    def test_of_a_long_queue_the_head_is_seen_and_all_are_counted(self, key: Key) -> None:
        key.runs("holder")
        tasks = [f"w{n}" for n in range(WINDOW + 8)]
        key.parks(*tasks)

        (state,) = key.backend.look(["key"])

        assert seen(state) == seen(key.backend.peek("key"))
        assert [entry.task for entry in state.waiting] == tasks[:WINDOW]
        assert state.parked == len(tasks)
        for limit in (1, WINDOW, WINDOW + 3, 1000):
            state = key.backend.peek("key", limit)
            assert [entry.task for entry in state.waiting] == tasks[:limit]
            assert [holder.task for holder in state.holders] == ["holder"]
            assert state.parked == len(tasks)
        assert key.backend.peek("nobody's", 10) == KeyState()

    def test_a_task_is_told_where_it_stands_until_its_turn_has_come(self, key: Key) -> None:
        key.runs("holder")
        tasks = [f"w{n}" for n in range(2 * WINDOW)]
        key.parks(tasks[0])
        key.refuses("place", wait=PLACE)
        key.parks(*tasks[1:])
        position = key.backend.position

        whole = {entry.task: entry for entry in key.backend.peek("key").waiting}
        for task, before in (("w0", 0), ("place", 1), (tasks[-1], 2 * WINDOW)):
            assert position("key", task) == (whole[task], before)
        assert (position("key", "holder"), position("another", "w0")) == (None, None)

        assert key.leaves("holder") == ["w0"]

        assert position("key", "w0") is None
        assert position("key", "place") == (key.backend.peek("key").waiting[0], 0)

    def test_a_place_that_has_expired_is_not_seen(self, key: Key) -> None:
        key.runs("a", ttl=3600)
        key.refuses("short", wait=PLACE, patience=10)
        key.refuses("long", wait=PLACE, patience=20)

        key.passes(10)
        (state,) = key.backend.look(["key"])

        assert [entry.task for entry in state.waiting] == ["long"]
        assert not state.parked

    def test_each_kind_of_wait_is_seen_as_an_operation_finds_it(self, backend: LockBackend) -> None:
        for one, other in pairwise(WaitMode):
            running(backend.enter(claim("a", key=f"{one} {other}")))
            for wait in (one, other):
                backend.enter(claim(f"{wait} b", key=f"{one} {other}", wait=wait), b"message")
        keys = [f"{one} {other}" for one, other in pairwise(WaitMode)]

        for key, state in zip(keys, backend.look(keys), strict=True):
            assert seen(state) == seen(backend.peek(key))

    def test_an_idle_store_stays_idle_and_tells_instants_by_its_own_clock(self, key: Key) -> None:
        key.backend.look(["key", "other"])
        key.backend.keys()
        assert key.sweep() == Swept((), None)
        assert key.backend.peek("key") == KeyState()

        for _ in range(2):
            key.runs("a")
            (holder,) = key.backend.peek("key").holders
            assert key.backend.now() == holder.since
            key.leaves("a", OVER)
            key.passes(3600)
