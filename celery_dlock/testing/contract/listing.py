"""Keys of any name: apart from each other, and listed page by page; a look changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dlock.core.state import Busy, KeyState, NotHeld, Outcome
from celery_dlock.stores.base import BackendOptions, LockBackend, NoteStore
from celery_dlock.testing.contract.words import (
    ENQUEUE,
    PLACE,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    listed_keys,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock

ODD = [
    *("key", "KEY", "key ", " key", "two words", "line\nbreak", "carriage\rreturn", "tab\t"),
    *("}{", "{tag}", "{}", "{", "100%", "%s %d %(x)s", "a:b", "a::b", "a|b", "a/b", "../a", "*"),
    *("[a]?", "'quoted'", '"quoted"', "; DROP TABLE state", "back\\slash", "nul\0l", "nul"),
    *("\u00e9", "e\u0301", "\u9396\u524d", "\U0001f512", "x" * 200, "x" * 199),
    *("x" * 4000, "x" * 4000 + "y", "\u9396" * 1365),
]


class KeysTests(StoreUnderTest):
    """Keys do not meet, whatever they are made of; nor do the applications that share a store."""

    def test_keys_of_odd_characters_do_not_meet(self, backend: LockBackend) -> None:
        for key in ODD:
            running(backend.enter(claim(f"holder of {key}", key=key)))
        for key in ODD:
            verdict = backend.enter(claim("other", key=key)).verdict
            assert isinstance(verdict, Busy)
            assert verdict.holder is not None
            assert verdict.holder.task == f"holder of {key}"

    def test_a_task_and_a_nonce_that_join_to_the_same_text_are_told_apart(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a|b", "c"))

        assert isinstance(backend.leave(claim("a", "b|c"), Outcome.OVER).verdict, NotHeld)

        assert isinstance(backend.enter(claim("d")).verdict, Busy)

    def test_two_prefixes_do_not_meet(self, url: str, options: BackendOptions) -> None:
        pairs = [("shop", "order"), ("other", "order"), ("a", "b:c"), ("a:b", "c"), ("a:b:c", "")]
        stores = [
            (
                self.backend_class.from_url(url, replace(options, prefix=options.prefix + prefix)),
                key,
            )
            for prefix, key in pairs
        ]
        for store, key in stores:
            running(store.enter(claim("a", key=key)))
            store.leave(claim("a", key=key), Outcome.DONE)
            running(store.enter(claim("b", key=key)))
        for store, key in stores:
            assert [h.task for h in store.peek(key).holders] == ["b"]
            store.close()

    def test_an_idle_key_is_as_if_it_had_never_been(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "b")
        backend.leave(claim("a"), Outcome.DONE)
        backend.enter(claim("b", wait=QUEUE))
        backend.leave(claim("b"), Outcome.DONE)
        clock.advance(3601)
        backend.reap("key")

        state = backend.peek("key")

        assert (state.holders, state.grants, state.waiting, state.parked) == ((), (), (), 0)
        for task in "ab":
            running(backend.enter(claim(task)))
            backend.leave(claim(task), Outcome.DONE)


SOME = 40


class Listing(StoreUnderTest):
    """All keys are listed, page by page, whatever comes and goes meanwhile."""

    def test_keys_are_told_that_are_held_woken_or_waited_for(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a", key="held")))
        running(backend.enter(claim("a", key="read", mode=SHARED)))
        running(backend.enter(claim("a", key="waited for")))
        park(backend, "b", key="waited for")
        running(backend.enter(claim("a", key="woken")))
        park(backend, "b", key="woken")
        assert woken(backend.leave(claim("a", key="woken"), Outcome.DONE)) == ["b"]
        backend.enter(claim("a", key="declared", wait=ENQUEUE), b"message")
        running(backend.enter(claim("a", key="kept", wait=QUEUE, keep=True), b"message"))
        running(backend.enter(claim("a", key="comes back")))
        backend.enter(claim("b", key="comes back", wait=PLACE))
        with_messages = ["declared", "kept", "waited for", "woken"]

        assert listed_keys(backend) == sorted([*with_messages, "held", "read", "comes back"])
        assert listed_keys(backend, waiting=True) == with_messages

    def test_a_key_that_is_released_is_not_listed(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")
        backend.leave(claim("a"), Outcome.DONE)
        running(backend.enter(claim("b", wait=QUEUE)))
        backend.leave(claim("b"), Outcome.DONE)
        if isinstance(backend, NoteStore):  # notes are not in use of the key
            backend.note("key", 5, {"name": b"text"})

        for waiting in (False, True):
            assert listed_keys(backend, waiting=waiting) == []
        assert backend.look(["key"]) == [KeyState()]

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


class Looking(StoreUnderTest):
    """Each key is seen as an operation would find it, and many at once; a look changes nothing."""

    def test_to_list_and_to_look_changes_nothing(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=10)))
        park(backend, "b", gives_up=5)
        backend.enter(claim("c", wait=PLACE, patience=10))
        clock.advance(11)
        before = backend.peek("key")

        for waiting in (False, True):
            assert listed_keys(backend, waiting=waiting) == ["key"]
        (state,) = backend.look(["key"])

        assert backend.peek("key") == before
        assert [entry.task for entry in state.waiting] == ["b"]
        assert woken(backend.sweep()) == ["b"]
