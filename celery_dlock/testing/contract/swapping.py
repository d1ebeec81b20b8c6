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

    def test_who_knows_what_stands_changes_it_and_nobody_else(
        self, backend: LockBackend, elsewhere: LockBackend
    ) -> None:
        for store, was, becomes, stands in (
            (backend, None, None, None),  # to look is to swap nothing for nothing
            (backend, b"other", b"new", None),
            (backend, None, b"first", b"first"),
            (backend, None, b"first", b"first"),  # said twice
            (elsewhere, None, b"second", b"first"),
            (backend, None, None, b"first"),
            (backend, b"other", None, b"first"),
            (backend, b"firs", None, b"first"),
            (elsewhere, b"first", b"second", b"second"),
            (elsewhere, b"first", b"second", b"second"),  # said twice
            (backend, b"first", b"third", b"second"),
            (backend, b"second", None, None),
            (backend, b"second", None, None),  # said twice
            (elsewhere, None, b"anew", b"anew"),
        ):
            assert store.swap("name", was, becomes, LONG) == stands, (was, becomes)

    def test_its_time_ends_and_is_that_of_the_last_who_put_it(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for name, first, last in (("name", LONG, SHORT), ("other", SHORT, LONG)):
            backend.swap(name, None, b"first", first)
            backend.swap(name, b"first", b"last", last)
        clock.advance(0.999)
        assert backend.swap("name", None, b"second", SHORT) == b"last"

        clock.advance(0.001)

        assert backend.swap("name", b"last", b"second", SHORT) is None
        assert backend.swap("name", None, b"second", SHORT) == b"second"
        assert backend.swap("other", None, None, LONG) == b"last"

    def test_of_any_name_and_apart_from_the_key_of_that_text(self, backend: LockBackend) -> None:
        for name in ODD:
            assert backend.swap(name, None, name.encode(), LONG) == name.encode()
        for name in ODD:
            assert backend.swap(name, name.encode(), b"second", LONG) == b"second"

        assert sorted(backend.swapped(1000)) == sorted((name, b"second") for name in ODD)
        assert (backend.look(["key"]), backend.peek("key")) == ([KeyState()], KeyState())
        assert listed_keys(backend) == []
        assert backend.sweep().next_in is None
        for name in ODD:
            assert backend.swap(name, b"second", None, LONG) is None
        assert backend.swapped() == []

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
