"""Stores with one known defect each in what is noted beside a key."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from celery_dlock.stores.base import BackendOptions, Swept
from celery_dlock.stores.memory import _Notes
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.testing.contract.words import DEADLINE
from tests.contract.broken import Broken
from tests.contract.storage.noting import TURNS, WRITERS

Texts = Mapping[str, bytes | None]


class RefusesNoNote(Broken):
    noticed_by = "test_a_smaller_token_is_refused_and_nothing_of_it_stands"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return super().note(key, 0, notes)


class WritesWhatItRefuses(Broken):
    noticed_by = "test_a_smaller_token_is_refused_and_nothing_of_it_stands"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        accepted = super().note(key, token, notes)
        if not accepted:
            super().note(key, self._notes[key].bar, notes)
        return accepted


class LowersTheBar(Broken):
    """Refuses a smaller token, and goes by that one from then on."""

    noticed_by = "test_a_smaller_token_is_refused_and_nothing_of_it_stands"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        accepted = super().note(key, token, notes)
        self._notes[key].bar = token
        return accepted


class RefusesAnEqualToken(Broken):
    noticed_by = "test_an_equal_token_passes"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return token != self._notes.get(key, _Notes()).bar and super().note(key, token, notes)


class RaisesTheBarWithANoteOnly(Broken):
    noticed_by = "test_a_larger_token_that_writes_nothing_keeps_smaller_ones_out"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return not notes or super().note(key, token, notes)


class HasNoBarBeforeThereAreNotes(Broken):
    noticed_by = "test_the_first_token_of_a_key_keeps_smaller_ones_out"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return (not notes and not self.notes(key)) or super().note(key, token, notes)


class ForgetsTheBarWithTheLastNote(Broken):
    noticed_by = "test_a_smaller_token_is_refused_when_all_notes_are_deleted"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        accepted = super().note(key, token, notes)
        if not self.notes(key):
            del self._notes[key]
        return accepted


class EmptiesWhatIsDeleted(Broken):
    noticed_by = "test_none_deletes_a_note_that_is_there_or_not"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return super().note(key, token, {name: text or b"" for name, text in notes.items()})


class TakesAnEmptyNoteForNone(Broken):
    noticed_by = "test_notes_of_any_bytes_are_read_back"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return super().note(key, token, {name: text or None for name, text in notes.items()})


class ReplacesAllNotes(Broken):
    noticed_by = "test_a_note_is_replaced_and_others_stay"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return super().note(key, token, {**dict.fromkeys(self.notes(key)), **notes})


class ComparesTokensOverAllKeys(Broken):
    noticed_by = "test_notes_beside_keys_of_odd_characters_are_apart"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        largest = max((beside.bar for beside in self._notes.values()), default=0)
        return token >= largest and super().note(key, token, notes)


class JoinsKeyAndName(Broken):
    noticed_by = "test_a_key_and_a_name_that_join_to_the_same_text_are_told_apart"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return super().note("", token, {f"{key}:{name}": text for name, text in notes.items()})

    def notes(self, key: str) -> dict[str, bytes]:
        found = super().notes("").items()
        return {
            name.removeprefix(f"{key}:"): text for name, text in found if name.startswith(f"{key}:")
        }


class ComparesTokensAsText(Broken):
    noticed_by = "test_tokens_that_differ_by_one_are_told_apart"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        if str(token) < str(self._notes.get(key, _Notes()).bar):
            return False
        return super().note(key, token, notes)


class ComparesTokensAsFloats(Broken):
    noticed_by = "test_tokens_that_differ_by_one_are_told_apart"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return super().note(key, int(float(token)), notes)


class ForgetsTheNotesOfAnIdleKey(Broken):
    noticed_by = "test_notes_stay_whatever_becomes_of_the_key"

    def _tidy(self, key: str) -> None:
        super()._tidy(key)
        if key not in self._keys:
            self._notes.pop(key, None)


class SweepsKeysForTheirNotes(Broken):
    noticed_by = "test_the_key_knows_nothing_of_its_notes"

    def sweep(self, limit: int = 100) -> Swept:
        swept = super().sweep(limit)
        return Swept(swept.wakes, 0 if self._notes else swept.next_in)


class WritesAHundredNotes(Broken):
    noticed_by = "test_hundreds_of_notes_are_written_replaced_and_deleted_at_once"

    def note(self, key: str, token: int, notes: Texts) -> bool:
        return super().note(key, token, dict(list(notes.items())[:100]))


class ChecksFirstAndWritesThen(Broken):
    """The first of many writers is slow between the two."""

    noticed_by = "test_of_many_writers_at_once_what_the_largest_token_wrote_stands"

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self._nobody_yet = threading.Semaphore(1)
        self._others = threading.Semaphore(0)

    def note(self, key: str, token: int, notes: Texts) -> bool:
        if not self._nobody_yet.acquire(blocking=False):
            accepted = super().note(key, token, notes)
            self._others.release()
            return accepted
        for _ in range((WRITERS - 1) * TURNS):
            self._others.acquire(timeout=DEADLINE)
        texts = {name: text for name, text in notes.items() if text is not None}
        self._notes[key].texts.update(texts)
        return True


class KeepsItsNotesToItself(SqliteBackend):
    """Reads again only what it has not read before."""

    noticed_by = "test_notes_are_seen_by_others_as_soon_as_the_writer_was_told"

    def __init__(self, path: Path, options: BackendOptions) -> None:
        super().__init__(path, options)
        self._known: dict[str, dict[str, bytes]] = {}

    def note(self, key: str, token: int, notes: Texts) -> bool:
        self._known.pop(key, None)
        return super().note(key, token, notes)

    def notes(self, key: str) -> dict[str, bytes]:
        if key not in self._known:
            self._known[key] = super().notes(key)
        return self._known[key]


class TakesItsNotesAlong(SqliteBackend):
    """What a connection has noted goes with it."""

    noticed_by = "test_notes_outlast_the_connection_that_wrote_them"

    def close(self) -> None:
        with self._file.transaction() as db:
            db.execute("DELETE FROM note")
        super().close()
