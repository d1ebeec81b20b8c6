"""Stores with one known defect each in what stands under a name for a while."""

from __future__ import annotations

import time

from celery_dlock.core.state import Claim, Mode
from tests.contract.broken import Broken

Value = bytes | None


class PutsWhateverStands(Broken):
    """The last one wins, as with a plain SET."""

    noticed_by = "test_what_was_put_where_nothing_stood_stands"

    def swap(self, name: str, was: Value, becomes: Value, stays: int) -> Value:
        return super().swap(name, super().swap(name, None, None, 0), becomes, stays)


class TakesAwayWhateverStands(Broken):
    """Frees what another one has: a plain DEL."""

    noticed_by = "test_who_is_wrong_changes_nothing"

    def swap(self, name: str, was: Value, becomes: Value, stays: int) -> Value:
        if becomes is None and was is not None:
            was = super().swap(name, None, None, 0)
        return super().swap(name, was, becomes, stays)


class TellsWhatWasAskedFor(Broken):
    """Whoever is refused believes that he was not."""

    noticed_by = "test_what_was_put_where_nothing_stood_stands"

    def swap(self, name: str, was: Value, becomes: Value, stays: int) -> Value:
        super().swap(name, was, becomes, stays)
        return becomes


class RefusesARepetition(Broken):
    noticed_by = "test_what_is_said_twice_is_answered_as_the_first_time"

    def swap(self, name: str, was: Value, becomes: Value, stays: int) -> Value:
        stands = super().swap(name, None, None, 0)
        return super().swap(name, was, becomes, stays) if stands == was else was


class NeverForgets(Broken):
    noticed_by = "test_its_time_ends"

    def swap(self, name: str, was: Value, becomes: Value, stays: int) -> Value:
        return super().swap(name, was, becomes, 2**62)


class CountsFromTheFirstOne(Broken):
    """The first end stays, whoever puts something there later."""

    noticed_by = "test_its_time_is_that_of_the_last_who_put_it"

    def swap(self, name: str, was: Value, becomes: Value, stays: int) -> Value:
        _, until = self._swapped.get(name, (b"", 0))
        stands = super().swap(name, was, becomes, stays)
        if was is not None and name in self._swapped:
            self._swapped[name] = self._swapped[name][0], until
        return stands


class TakesANameForAKey(Broken):
    noticed_by = "test_it_has_nothing_to_do_with_a_key_of_that_text"

    def swap(self, name: str, was: Value, becomes: Value, stays: int) -> Value:
        self.enter(Claim(name, name, nonce="", ttl=stays, mode=Mode.SHARED))
        return super().swap(name, was, becomes, stays)


class LooksAndThenPuts(Broken):
    """Compares, and sets: two steps."""

    noticed_by = "test_of_those_who_try_at_once_one_gets_through"

    def swap(self, name: str, was: Value, becomes: Value, stays: int) -> Value:
        stands, _ = self._swapped.get(name, (None, 0))
        if stands != was:
            return stands
        time.sleep(0.001)  # in which another one does the same
        self._swapped[name] = becomes or b"", self._now() + stays
        return becomes
