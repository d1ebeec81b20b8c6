"""Notes beside a key: what the last leader wrote stands, and an earlier one changes nothing."""

from __future__ import annotations

from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Outcome
from celery_dlock.stores.base import NoteStore
from celery_dlock.testing.contract.words import DAY, QUEUE, StoreUnderTest, claim, park, running
from celery_dlock.testing.project import ManualClock

LARGE = 2**62


class Noting(StoreUnderTest):
    def test_notes_of_any_bytes_are_read_back(self, backend: NoteStore) -> None:
        notes = {"all": bytes(range(256)), "empty": b"", "text": "\u9396".encode()}

        assert backend.note("key", 5, notes)

        assert backend.notes("key") == notes

    def test_a_note_is_replaced_and_others_stay(self, backend: NoteStore) -> None:
        backend.note("key", 5, {"a": b"a", "b": b"b"})

        assert backend.note("key", 6, {"b": b"later", "c": b"c"})

        assert backend.notes("key") == {"a": b"a", "b": b"later", "c": b"c"}

    def test_a_smaller_token_is_refused_and_nothing_of_it_stands(self, backend: NoteStore) -> None:
        backend.note("key", 10, {"a": b"a", "b": b"b"})

        assert not backend.note("key", 9, {"a": b"stale", "b": None, "c": b"stale"})
        assert not backend.note("key", 9, {})

        assert backend.notes("key") == {"a": b"a", "b": b"b"}
        assert backend.note("key", 10, {"c": b"c"})

    def test_notes_stay_whatever_becomes_of_the_key(
        self, backend: NoteStore, clock: ManualClock
    ) -> None:
        backend.note("key", LARGE, {"a": b"a"})

        running(backend.enter(claim("a")))
        park(backend, "b")
        backend.leave(claim("a"), Outcome.DONE)
        running(backend.enter(claim("b", wait=QUEUE)))
        clock.advance(30 * DAY)
        backend.reap("key")
        backend.sweep()
        backend.apply(Replay("key", "b"))
        clock.advance(30 * DAY)
        backend.reap("key")

        assert backend.notes("key") == {"a": b"a"}
        assert not backend.note("key", LARGE - 1, {"a": b"stale"})
