"""What is particular to Django: its proxies, its test cases, its caches."""

from __future__ import annotations

import threading
import unittest
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.core.cache import cache
from django.db import connection as default_connection
from django.db import connections, transaction
from django.test import TestCase

from celery_dlock import ConfigurationError, Lease, StaleFencingToken, fencing
from celery_dlock.delivery import abort as abort_module
from celery_dlock.delivery.abort import Abort
from tests.fencing.clients import Client, configure_django, open_client
from tests.fencing.conftest import Database
from tests.services.instants import Instant, every_instant, outcome

pytestmark = pytest.mark.once


@pytest.fixture
def default(database: Database) -> Iterator[Client]:
    """Django's default database is one that has the tables."""
    configure_django()
    kept = connections.settings["default"]
    with open_client("django", database("sqlite")) as client:
        connections.settings["default"] = connections.settings[client.fenced.alias]
        connections["default"] = connections.create_connection("default")
        yield client
        connections["default"].close()
        del connections["default"]
        connections.settings["default"] = kept


def test_the_connection_of_django_db(default: Client, name: str) -> None:
    with transaction.atomic():
        fencing.admit(default_connection, resource=name, fencing_token=7, owner="a")
        assert fencing.once(default_connection, name, resource="shop")
    with pytest.raises(StaleFencingToken), transaction.atomic():
        fencing.admit(default_connection, resource=name, fencing_token=6, owner="a")
    with pytest.raises(ConfigurationError, match=r"with transaction.atomic\('default'\)"):
        fencing.once(default_connection, name, resource="shop")


def test_a_test_case_takes_back_what_was_fenced_in_it(default: Client, name: str) -> None:
    class Fenced(TestCase):  # type: ignore[misc]
        def test_it(self) -> None:
            with transaction.atomic():
                assert fencing.once(default_connection, name, resource="shop")

    for _ in range(2):
        ran = unittest.TextTestRunner(verbosity=0, stream=_Nowhere()).run(Fenced("test_it"))
        assert ran.wasSuccessful(), ran.errors + ran.failures


def test_what_is_no_connection_of_django(default: Client) -> None:
    with default.fenced.cursor() as cursor, pytest.raises(ConfigurationError, match="not a cursor"):
        fencing.once(cursor, "event", resource="shop")
    with pytest.raises(ConfigurationError, match="ConnectionProxy"):
        fencing.once(cache, "event", resource="shop")


@pytest.mark.parametrize("fails", [False, True])
def test_an_abort_at_any_instant_leaves_no_transaction_open(
    default: Client, name: str, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(abort_module, "ABORT_RETRY_INTERVAL", 0.001)
    through: list[bool] = []

    def body() -> str:
        with suppress(ZeroDivisionError), transaction.atomic():
            assert fencing.once(default_connection, f"{name} {uuid.uuid4()}", resource="shop")
            if fails:
                raise ZeroDivisionError
        through.append(True)
        for _ in range(60_000):
            threading.Event().wait(0.001)
        return "ran"

    def scenario(number: int) -> tuple[str, bool]:
        abort = Abort()
        over: list[bool] = []
        through.clear()

        def strike() -> None:
            over.extend(through)
            abort.strike("lost", "why")

        instant = Instant(number, strike, {__file__, transaction.__file__})
        found = outcome(lambda: abort.run(Lease((), "none"), body), instant)
        assert not default_connection.in_atomic_block
        assert default_connection.get_autocommit()
        return found, bool(over)

    assert set(every_instant(scenario)) == {"lost"}


class _Nowhere:
    def write(self, _: str) -> None: ...

    def flush(self) -> None: ...
