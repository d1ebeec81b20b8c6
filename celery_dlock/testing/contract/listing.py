"""All keys are listed, page by page, whatever comes and goes meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dlock.backends.base import BackendOptions, LockBackend
from celery_dlock.core.state import KeyState, Outcome
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.keys import HOSTILE
from celery_dlock.testing.contract.words import (
    ENQUEUE,
    PLACE,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)

HOSTILE_CURSORS = [
    *("x", "0", "-1", ">", "h", "h-1", f"h{2**64}", "w64:0", "w0:", "c0:0:0:", "n0:0"),
    *("c0:0:0:169.254.169.254:80", "h1\n", "h\u0661", ">\ud800", "\ud800", "\0", "*", "9" * 5000),
    "../../etc/passwd",
    *HOSTILE[1:],
]

SOME = 40


def told(backend: LockBackend, limit: int = 100, *, waiting: bool = False) -> list[str]:
    """All keys, in the order of their names."""
    return sorted(set(all_told(backend, limit, waiting=waiting)))


def all_told(backend: LockBackend, limit: int, *, waiting: bool = False) -> list[str]:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = backend.keys(cursor, limit, waiting=waiting)
        found += page.keys
        cursor = page.cursor
    return found


class Listing(StoreUnderTest):
    def test_where_nothing_is_in_use_no_key_is_told(self, backend: LockBackend) -> None:
        for waiting in (False, True):
            assert all_told(backend, 100, waiting=waiting) == []

    def test_keys_are_told_that_are_held_called_or_waited_for(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a", key="held")))
        running(backend.enter(claim("a", key="read", mode=SHARED)))
        running(backend.enter(claim("a", key="waited for")))
        park(backend, "b", key="waited for")
        running(backend.enter(claim("a", key="called")))
        park(backend, "b", key="called")
        assert woken(backend.leave(claim("a", key="called"), Outcome.DONE)) == ["b"]
        backend.enter(claim("a", key="declared", wait=ENQUEUE), b"message")
        running(backend.enter(claim("a", key="kept", wait=QUEUE, keep=True), b"message"))
        running(backend.enter(claim("a", key="comes back")))
        backend.enter(claim("b", key="comes back", wait=PLACE))
        with_messages = ["called", "declared", "kept", "waited for"]

        assert told(backend) == sorted([*with_messages, "held", "read", "comes back"])
        assert told(backend, waiting=True) == with_messages

    def test_a_key_for_which_a_place_is_kept_is_told(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        backend.enter(claim("b", wait=PLACE))

        backend.leave(claim("a"), Outcome.DONE)

        assert told(backend) == ["key"]
        assert told(backend, waiting=True) == []

    def test_a_key_that_is_given_back_is_not_told(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")
        backend.leave(claim("a"), Outcome.DONE)
        running(backend.enter(claim("b", wait=QUEUE)))
        backend.leave(claim("b"), Outcome.DONE)
        backend.note("key", 5, {"name": b"text"})

        for waiting in (False, True):
            assert told(backend, waiting=waiting) == []
        assert backend.look(["key"]) == [KeyState()]

    def test_keys_of_odd_characters_are_told_by_their_names(self, backend: LockBackend) -> None:
        for number, key in enumerate(HOSTILE):
            running(backend.enter(claim("a", key=key)))
            if number % 2:
                park(backend, "b", key=key)

        for limit in (7, 1000):
            assert told(backend, limit) == sorted(HOSTILE)
            assert told(backend, limit, waiting=True) == sorted(HOSTILE[1::2])

    def test_keys_of_two_prefixes_are_listed_apart(
        self, backend: LockBackend, url: str, options: BackendOptions
    ) -> None:
        parts = [":key", ":1:{1}:{x", "*", "?", "[a]", "\\", "/1/guard", ",1", "{", "}"]
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
                assert told(store, waiting=waiting) == [f"key {number}"]
            first, second = store.look([f"key {number}", f"key {number - 1}"])
            assert first.holders
            assert second == KeyState()
        for other in others:
            other.close()

    @pytest.mark.parametrize("waiting", [False, True])
    def test_a_key_in_use_is_told_whatever_comes_and_goes_between_the_pages(
        self, backend: LockBackend, clock: ManualClock, waiting: bool
    ) -> None:
        def use(key: str) -> None:
            running(backend.enter(claim("a", key=key, ttl=3600)))
            park(backend, "b", key=key)

        def free(key: str) -> None:
            backend.leave(claim("a", key=key), Outcome.OVER)
            running(backend.enter(claim("b", key=key, wait=QUEUE)))
            backend.leave(claim("b", key=key), Outcome.OVER)

        stay = [f"{n:02d} stays" for n in range(SOME)]
        go = [f"{n:02d} goes" for n in range(SOME // 4)]
        for key in [*stay, *go]:
            use(key)
        page = backend.keys(limit=5, waiting=waiting)
        assert len(page.keys) < SOME
        found = [*page.keys]
        while page.cursor is not None:
            for key in set(go).intersection(page.keys):
                go.remove(key)
                free(key)
                use(f"99 comes instead of {key}")
            for key in [key for key in stay if key not in found][:2]:
                backend.cancel(key, "b")  # so something is to be done there sooner than before
                backend.renew([claim("a", key=key, ttl=7200)])
            page = backend.keys(page.cursor, 5, waiting=waiting)
            found += page.keys

        assert set(stay) <= set(found)

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
        assert told(backend, waiting=waiting) == ["key"]

    def test_a_word_is_no_cursor(self, backend: LockBackend) -> None:
        for waiting in (False, True):
            with pytest.raises(ValueError, match="cursor"):
                backend.keys("nonsense", waiting=waiting)
