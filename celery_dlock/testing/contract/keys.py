"""Keys do not meet, whatever they are made of; nor do the applications that share a store."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from celery_dlock.backends.base import BackendOptions, LockBackend, Wake
from celery_dlock.core.state import Busy, Left, Lost, Outcome
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import QUEUE, StoreUnderTest, claim, park, running

ODD = [
    "key",
    "KEY",
    "key ",
    " key",
    "two words",
    "line\nbreak",
    "carriage\rreturn",
    "tab\t",
    "}{",
    "{tag}",
    "{}",
    "{",
    "100%",
    "%s %d %(x)s",
    "a:b",
    "a::b",
    "a|b",
    "a/b",
    "../a",
    "*",
    "[a]?",
    "'quoted'",
    '"quoted"',
    "; DROP TABLE guard",
    "back\\slash",
    "nul\0l",
    "nul",
    "\u00e9",
    "e\u0301",
    "\u9396\u524d",
    "\U0001f512",
    "x" * 200,
    "x" * 199,
]

#: What a web page or a template can make of a key, and a person has to read.
HOSTILE = [
    *ODD,
    "",
    "\n",
    "{" * 9,
    "}:state",
    "<script>alert(1)</script>",
    "\u202e",
    "\u9396" * 1365,
]


class Keys(StoreUnderTest):
    def test_two_keys_are_held_at_once_and_freed_apart(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a", key="one")))
        running(backend.enter(claim("b", key="other")))

        backend.leave(claim("a", key="one"), Outcome.OVER)

        assert isinstance(backend.enter(claim("c", key="other")).verdict, Busy)
        running(backend.enter(claim("c", key="one")))

    def test_keys_of_odd_characters_do_not_meet(self, backend: LockBackend) -> None:
        for number, key in enumerate(ODD):
            running(backend.enter(claim(f"holder {number}", key=key)))
        for number, key in enumerate(ODD):
            verdict = backend.enter(claim("other", key=key)).verdict
            assert isinstance(verdict, Busy)
            assert verdict.holder is not None
            assert verdict.holder.task == f"holder {number}", key

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
                assert isinstance(backend.leave(wrong, Outcome.OVER).verdict, Lost)

            assert isinstance(backend.leave(claim(one, one, key=one), Outcome.OVER).verdict, Left)

    def test_a_task_and_a_nonce_that_join_to_the_same_text_are_told_apart(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a|b", "c"))

        assert isinstance(backend.leave(claim("a", "b|c"), Outcome.OVER).verdict, Lost)

        assert isinstance(backend.enter(claim("d")).verdict, Busy)

    def test_the_queue_tells_tasks_of_odd_characters_apart(self, backend: LockBackend) -> None:
        backend.enter(claim("holder", limit=1))
        for number, task in enumerate(ODD):
            backend.enter(claim(task, wait=QUEUE), str(number).encode())

        called = backend.leave(claim("holder"), Outcome.OVER).wakes
        for number, task in enumerate(ODD):
            assert called == (Wake("key", task, str(number).encode()),)
            running(backend.enter(claim(task, wait=QUEUE)))
            called = backend.leave(claim(task), Outcome.DONE).wakes

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
