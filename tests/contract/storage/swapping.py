"""Compare-and-set of what stands under a name: of all who try at once, one gets through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_dlock.core.state import KeyState
from celery_dlock.stores.base import BackendOptions, LockBackend, Trait
from celery_dlock.testing.contract.listing import ODD
from celery_dlock.testing.contract.words import DAY, SECOND, StoreUnderTest, at_once, listed_keys
from celery_dlock.testing.project import ManualClock

RACERS = 8
TURNS = 20
LONG = round(DAY * SECOND)
SHORT = SECOND


class Swapping(StoreUnderTest):
    @pytest.fixture
    def elsewhere(
        self, backend: LockBackend, url: str, options: BackendOptions
    ) -> Iterator[LockBackend]:
        """The same store by another connection, if it has any."""
        if Trait.MULTI_PROCESS not in self.backend_class.traits:
            yield backend
            return
        other = self.backend_class.from_url(url, options)
        yield other
        other.close()

    def test_what_was_put_where_nothing_stood_stands(
        self, backend: LockBackend, elsewhere: LockBackend
    ) -> None:
        assert backend.swap("name", None, b"first", LONG) == b"first"

        assert elsewhere.swap("name", None, b"second", LONG) == b"first"
        assert backend.swap("name", None, b"third", LONG) == b"first"

    def test_who_knows_what_stands_changes_it(
        self, backend: LockBackend, elsewhere: LockBackend
    ) -> None:
        backend.swap("name", None, b"first", LONG)

        assert elsewhere.swap("name", b"first", b"second", LONG) == b"second"

        assert backend.swap("name", b"first", b"third", LONG) == b"second"
        assert backend.swap("name", b"second", b"third", LONG) == b"third"

    def test_who_is_wrong_changes_nothing(self, backend: LockBackend) -> None:
        assert backend.swap("name", b"other", b"new", LONG) is None
        backend.swap("name", None, b"first", LONG)

        assert backend.swap("name", b"other", None, LONG) == b"first"
        assert backend.swap("name", b"firs", None, LONG) == b"first"

        assert backend.swap("name", None, b"new", LONG) == b"first"

    def test_what_is_taken_away_is_gone(self, backend: LockBackend) -> None:
        backend.swap("name", None, b"first", LONG)

        assert backend.swap("name", b"first", None, LONG) is None
        assert backend.swap("name", b"first", None, LONG) is None

        assert backend.swap("name", None, b"second", LONG) == b"second"

    def test_what_is_said_twice_is_answered_as_the_first_time(self, backend: LockBackend) -> None:
        assert backend.swap("name", None, b"first", LONG) == b"first"
        assert backend.swap("name", None, b"first", LONG) == b"first"

        assert backend.swap("name", b"first", b"second", LONG) == b"second"
        assert backend.swap("name", b"first", b"second", LONG) == b"second"

    def test_to_look_is_to_swap_nothing_for_nothing(self, backend: LockBackend) -> None:
        assert backend.swap("name", None, None, LONG) is None

        backend.swap("name", None, b"there", LONG)

        assert backend.swap("name", None, None, LONG) == b"there"
        assert backend.swap("name", None, None, LONG) == b"there"

    def test_its_time_ends(self, backend: LockBackend, clock: ManualClock) -> None:
        backend.swap("name", None, b"first", SHORT)
        clock.advance(0.999)
        assert backend.swap("name", None, b"second", SHORT) == b"first"

        clock.advance(0.001)

        assert backend.swap("name", b"first", b"second", SHORT) is None
        assert backend.swap("name", None, b"second", SHORT) == b"second"

    def test_its_time_is_that_of_the_last_who_put_it(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.swap("name", None, b"first", LONG)
        backend.swap("name", b"first", b"short", SHORT)
        backend.swap("other", None, b"first", SHORT)
        backend.swap("other", b"first", b"first", LONG)

        clock.advance(1)

        assert backend.swap("name", None, None, LONG) is None
        assert backend.swap("other", None, None, LONG) == b"first"

    def test_of_many_whose_time_is_over_none_is_taken_for_another(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for number in range(150):
            backend.swap(f"short {number}", None, b"short", SHORT)
        backend.swap("long", None, b"long", LONG)

        clock.advance(1)

        assert backend.swap("short 7", b"short", b"new", LONG) is None
        assert backend.swap("short 8", None, b"new", LONG) == b"new"
        assert backend.swap("long", b"long", b"longer", LONG) == b"longer"
        assert sorted(backend.swapped(1000)) == [("long", b"longer"), ("short 8", b"new")]

    def test_any_bytes_are_kept(self, backend: LockBackend) -> None:
        whole = bytes(range(256)) * 4

        assert backend.swap("name", None, whole, LONG) == whole
        assert backend.swap("name", whole, whole + whole, LONG) == whole + whole
        assert backend.swap("name", None, None, LONG) == whole + whole

    @pytest.mark.parametrize("name", ODD)
    def test_of_any_name(self, backend: LockBackend, name: str) -> None:
        backend.swap("other", None, b"other", LONG)

        assert backend.swap(name, None, b"first", LONG) == b"first"
        assert backend.swap(name, b"first", b"second", LONG) == b"second"
        assert backend.swap(name, b"second", None, LONG) is None

        assert backend.swap("other", None, None, LONG) == b"other"

    def test_it_has_nothing_to_do_with_a_key_of_that_text(self, backend: LockBackend) -> None:
        backend.swap("key", None, b"first", LONG)

        assert backend.look(["key"]) == [KeyState()]
        assert backend.peek("key") == KeyState()
        assert listed_keys(backend) == []
        assert backend.sweep().next_in is None

    def test_what_stands_is_listed(self, backend: LockBackend, clock: ManualClock) -> None:
        assert backend.swapped() == []
        for name in ODD:
            backend.swap(name, None, f"of {name}".encode(), LONG)
        for number in range(20):
            backend.swap(f"short {number}", None, b"short", SHORT)
        backend.swap("gone", None, b"gone", LONG)
        backend.swap("gone", b"gone", None, LONG)
        clock.advance(1)

        assert sorted(backend.swapped(1000)) == sorted((n, f"of {n}".encode()) for n in ODD)
        assert len(backend.swapped(3)) == 3
        assert set(backend.swapped(3)) < set(backend.swapped(1000))

    def test_of_those_who_try_at_once_one_gets_through(self, backend: LockBackend) -> None:
        was: bytes | None = None
        for turn in range(TURNS):
            mine = [f"{turn} {racer}".encode() for racer in range(RACERS)]

            def race(racer: int, was: bytes | None = was, mine: list[bytes] = mine) -> bytes | None:
                return backend.swap("name", was, mine[racer], LONG)

            told = set(at_once(RACERS, race))

            assert len(told) == 1
            assert told < set(mine)
            (was,) = told
