"""Notes beside a key: what the last leader wrote stands, and an earlier one changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from celery_dlock.core.state import KeyState
from celery_dlock.stores.base import BackendOptions, NoteStore, Swept, Trait
from celery_dlock.testing.contract import noting as shipped
from celery_dlock.testing.contract.listing import ODD
from celery_dlock.testing.contract.noting import LARGE
from celery_dlock.testing.contract.words import at_once, claim, running

WRITERS = 8
TURNS = 5
MANY = 300


@dataclass
class Told:
    """The largest token of whose acceptance anybody was told."""

    token: int = 0
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def accepted(self, token: int) -> None:
        with self.mutex:
            self.token = max(self.token, token)


class Noting(shipped.Noting):
    @pytest.fixture
    def other(self, backend: NoteStore, url: str, options: BackendOptions) -> Iterator[NoteStore]:
        """The same store by another connection, if it has any."""
        if Trait.MULTI_PROCESS not in self.backend_class.traits:
            yield backend
            return
        other = self.backend_class.from_url(url, options)
        assert isinstance(other, NoteStore)
        yield other
        other.close()

    def test_notes_of_any_names_are_written_replaced_and_deleted(self, backend: NoteStore) -> None:
        names = ["", "/", "token", *ODD, *(f"name {n}" for n in range(MANY))]
        notes = {name: str(n).encode() for n, name in enumerate(names)}
        assert backend.notes("key") == {}
        assert backend.note("key", 5, notes)
        assert backend.notes("key") == notes

        changed = {name: text + b"!" if len(text) % 2 else None for name, text in notes.items()}
        assert backend.note("key", 5, {**changed, "nobody's": None})

        assert backend.notes("key") == {name: text for name, text in changed.items() if text}
        assert backend.note("key", 5, dict.fromkeys(notes))
        assert backend.notes("key") == {}

    def test_notes_beside_keys_of_odd_characters_and_of_another_prefix_are_apart(
        self, backend: NoteStore, stranger: NoteStore
    ) -> None:
        for number, key in enumerate(ODD):
            assert backend.note(key, len(ODD) - number, {"name": key.encode()})

        for key in ODD:
            assert backend.notes(key) == {"name": key.encode()}
            assert stranger.notes(key) == {}
        assert stranger.note(ODD[0], 0, {"name": b"other"})
        assert backend.notes(ODD[0]) == {"name": ODD[0].encode()}

    def test_a_key_and_a_name_that_join_to_one_text_differ(self, backend: NoteStore) -> None:
        for sign in ":/|,. ":
            backend.note(f"a{sign}b", 5, {"c": b"short"})
            backend.note("a", 5, {f"b{sign}c": sign.encode()})

            assert backend.notes(f"a{sign}b") == {"c": b"short"}

        assert backend.notes("a") == {f"b{sign}c": sign.encode() for sign in ":/|,. "}

    def test_an_equal_token_passes_and_a_smaller_one_does_not(self, backend: NoteStore) -> None:
        for token, notes, stands in (
            (5, {}, {}),
            (4, {"a": b"stale"}, None),  # the first one wrote nothing
            (5, {"a": b"first"}, {"a": b"first"}),
            (5, {"a": b"second"}, {"a": b"second"}),
            (6, {}, {"a": b"second"}),
            (5, {"a": b"stale"}, None),
            (6, {"a": None}, {}),
            (5, {"a": b"stale"}, None),  # although nothing is left
        ):
            before = backend.notes("key")
            assert backend.note("key", token, notes) is (stands is not None)
            assert backend.notes("key") == (before if stands is None else stands)

    def test_tokens_that_differ_by_one_are_told_apart(self, backend: NoteStore) -> None:
        for larger in (10, 2**53 + 1, LARGE + 1, 2**63 - 1):
            assert backend.note("key", larger - 1, {"a": b"first"})
            assert backend.note("key", larger, {"a": b"second"})

            assert not backend.note("key", larger - 1, {"a": b"stale"})
            assert backend.notes("key") == {"a": b"second"}

    def test_the_key_knows_nothing_of_its_notes(self, backend: NoteStore) -> None:
        backend.note("key", LARGE, {"a": b"a"})

        assert backend.peek("key") == KeyState()
        assert backend.sweep() == Swept((), None)
        assert backend.parked(["a"]) == []
        assert backend.dead() == []
        assert running(backend.enter(claim("a"))).token < 2**53

    def test_notes_are_seen_by_others_at_once_and_outlast_the_connection(
        self, backend: NoteStore, other: NoteStore
    ) -> None:
        for writer, reader in ((backend, other), (other, backend)):
            for turn in range(5):
                assert writer.note("key", 5, {"turn": str(turn).encode()})
                assert reader.notes("key") == {"turn": str(turn).encode()}
        other.close()

        assert backend.notes("key") == {"turn": b"4"}
        assert not backend.note("key", 4, {"turn": b"stale"})

    def test_of_many_writers_at_once_what_the_largest_token_wrote_stands(
        self, backend: NoteStore, other: NoteStore
    ) -> None:
        told, refused = Told(), list[int]()

        def write(number: int) -> None:
            store = other if number % 2 else backend
            for turn in range(TURNS):
                token, before = LARGE + turn * WRITERS + number, told.token
                text = str(token).encode()
                if store.note("key", token, {"one": text, "two": text, f"own {token}": text}):
                    assert token >= before, f"{token} came after {before}"
                    told.accepted(token)
                else:
                    refused.append(token)
                before = told.token
                assert int(store.notes("key")["one"]) >= before

        at_once(WRITERS, write)

        notes = backend.notes("key")
        tokens = {LARGE + n for n in range(WRITERS * TURNS)}
        assert int(notes.pop("one")) == int(notes.pop("two")) == max(tokens)
        assert notes.keys() == {f"own {token}" for token in tokens.difference(refused)}
