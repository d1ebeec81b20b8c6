"""More on compare-and-set than the contract in the package asks of a store."""

from __future__ import annotations

from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract import swapping as shipped
from celery_dlock.testing.contract.swapping import LONG, SHORT
from celery_dlock.testing.project import ManualClock


class Swapping(shipped.Swapping):
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

    def test_what_stands_is_listed(self, backend: LockBackend, clock: ManualClock) -> None:
        expected = [(f"name {number}", b"long") for number in range(20)]
        for name, value in expected:
            backend.swap(name, None, value, LONG)
        for number in range(100):
            backend.swap(f"short {number}", None, b"short", SHORT)
        backend.swap("gone", None, b"gone", LONG)
        backend.swap("gone", b"gone", None, LONG)
        clock.advance(1)

        assert sorted(backend.swapped(1000)) == sorted(expected)
        assert len(backend.swapped(3)) == 3
        assert set(backend.swapped(3)) < set(expected)
