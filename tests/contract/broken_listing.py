"""Stores with one known defect each in how they list keys, and tell how they stand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from celery_dlock.core.state import WINDOW, KeyState, Waiting
from celery_dlock.stores.base import DeadMessage, KeyPage
from celery_dlock.stores.memory import _Key
from tests.contract.broken import Broken


class EndsTheListAtAnEmptyPage(Broken):
    """What was told on the last page is gone, and with it where to go on."""

    noticed_by = "test_a_key_in_use_is_told_whatever_comes_and_goes_between_the_pages[False]"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        if cursor and cursor.removeprefix(">") not in self._keys:
            return KeyPage((), None)
        return super().keys(cursor, limit, waiting=waiting)


class CountsItsPages(Broken):
    """Goes on at a number of keys, of which some have gone meanwhile."""

    noticed_by = "test_a_key_in_use_is_told_whatever_comes_and_goes_between_the_pages[False]"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        skipped = int(cursor or 0)
        found = sorted(super().keys(limit=1_000, waiting=waiting).keys)
        more = len(found) > skipped + limit
        cursor = str(skipped + limit)
        return KeyPage(tuple(found[skipped : skipped + limit]), cursor if more else None)


class ListsThoseWhoWaitByWhenTheyAreDue(Broken):
    """Which changes while the list is read."""

    noticed_by = "test_a_key_in_use_is_told_whatever_comes_and_goes_between_the_pages[True]"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        if not waiting:
            return super().keys(cursor, limit)
        dues = [(at, key) for at, key in self._dues() if f"{at:016d}{key}" > cursor]
        told = tuple(key for _, key in dues[:limit])
        at, key = dues[len(told) - 1] if told else (0, "")
        return KeyPage(told, f"{at:016d}{key}" if len(dues) > limit else None)


class TellsAllOnOnePage(Broken):
    noticed_by = "test_a_key_in_use_is_told_whatever_comes_and_goes_between_the_pages[False]"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        return super().keys(cursor, 1_000, waiting=waiting)


class TellsOnlyWhatIsHeld(Broken):
    noticed_by = "test_keys_are_told_that_are_held_woken_or_waited_for"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        page = super().keys(cursor, limit, waiting=waiting)
        return replace(page, keys=tuple(key for key in page.keys if self._keys[key].state.holders))


class OverlooksPlaces(Broken):
    noticed_by = "test_a_key_for_which_a_place_is_kept_is_told"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        page = super().keys(cursor, limit, waiting=waiting)
        states = {key: self._keys[key].state for key in page.keys}
        return replace(page, keys=tuple(k for k, s in states.items() if s.holders or s.parked))


class TakesPlacesForMessages(Broken):
    noticed_by = "test_keys_are_told_that_are_held_woken_or_waited_for"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        page = super().keys(cursor, limit)
        states = {key: self._keys[key].state for key in page.keys}
        return replace(page, keys=tuple(k for k, s in states.items() if not waiting or s.waiting))


class TellsKeysThatAreOnlyRemembered(Broken):
    noticed_by = "test_a_key_that_is_released_is_not_listed"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        return KeyPage(tuple(self._keys), None)


class TellsKeysAsTheyAreWritten(Broken):
    noticed_by = "test_keys_of_odd_characters_are_told_by_their_names"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        page = super().keys(cursor, limit, waiting=waiting)
        return replace(page, keys=tuple(key.replace("}", "{)") for key in page.keys))


class BreaksAtALargeNumber(Broken):
    noticed_by = "test_a_cursor_that_no_page_gave_is_refused_or_begins_somewhere[False]"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        if cursor[1:].isdecimal() and int(cursor[1:]) >= 2**64:
            raise OverflowError(cursor)
        return super().keys(cursor, limit, waiting=waiting)


class BeginsAnewForAnyCursor(Broken):
    noticed_by = "test_a_word_is_no_cursor"

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        cursor = cursor if cursor.startswith(">") else ""
        return super().keys(cursor, limit, waiting=waiting)


class LeavesOutWhatIsNotInUse(Broken):
    noticed_by = "test_each_key_is_seen_in_its_place"

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        return super().look([key for key in keys if key in self._keys])


class LooksAtAHundred(Broken):
    noticed_by = "test_more_keys_than_fit_into_one_request_are_seen"

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        return super().look(keys[:100]) + [KeyState()] * len(keys[100:])


class LooksAtAllThatWait(Broken):
    noticed_by = "test_of_a_long_queue_the_head_is_seen_and_all_are_counted"

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        return [self.peek(key) for key in keys]


class CountsTheHeadOnly(Broken):
    noticed_by = "test_of_a_long_queue_the_head_is_seen_and_all_are_counted"

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        states = super().look(keys)
        return [replace(state, parked=min(state.parked, WINDOW)) for state in states]


class OverlooksWhoWasCalled(Broken):
    noticed_by = "test_holders_and_who_was_woken_are_seen_as_the_whole_key_has_them"

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        return [replace(state, grants=()) for state in super().look(keys)]


class ShowsPlacesThatHaveLapsed(Broken):
    noticed_by = "test_a_place_that_has_expired_is_not_seen"

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        return [
            replace(state, waiting=self._keys.get(key, _Key()).state.waiting[:WINDOW])
            for key, state in zip(keys, super().look(keys), strict=True)
        ]


class ReapsWhatItLooksAt(Broken):
    noticed_by = "test_to_list_and_to_look_changes_nothing"

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        for key in keys:
            self.reap(key)
        return super().look(keys)


class CountsItselfAmongThoseBefore(Broken):
    noticed_by = "test_a_task_is_told_where_it_stands"

    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        found = super().position(key, task)
        return None if found is None else (found[0], found[1] + 1)


class ReadsAllThatWait(Broken):
    noticed_by = "test_the_first_of_a_queue_are_read_as_many_as_asked_for"

    def peek(self, key: str, limit: int | None = None) -> KeyState:
        return super().peek(key)


class FindsTheDeadByTheBeginningOfTheirIds(Broken):
    noticed_by = "test_the_dead_of_some_tasks_are_found_and_no_others"

    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        return [b for b in self.dead() if b.dead.task.startswith(tuple(task_ids))]
