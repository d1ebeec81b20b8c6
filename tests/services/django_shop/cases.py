"""The tests of the project, which ``django test`` runs."""

from __future__ import annotations

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from celery_dlock import fencing, lock
from tests.services.django_shop.app import app


def holders() -> int:
    """As many as this test's database has, but for one that is told late of its release."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM dlock.holder WHERE key <> 'order:fenced'")
        return int(cursor.fetchone()[0])


class Committed(TransactionTestCase):  # type: ignore[misc]
    """Without a transaction around each test."""

    def test_a_lock_is_taken_in_the_tests_database_and_outlives_a_rollback(self) -> None:
        order = lock(f"order:{type(self).__name__}", app=app)
        with transaction.atomic():
            order.acquire()
            transaction.set_rollback(True)
        assert holders() == 1
        order.release()
        assert holders() == 0

    def test_a_request_that_fails_releases_its_lock(self) -> None:
        first = self.client.get("/pay/42")
        self.client.raise_request_exception = False
        assert self.client.get("/pay/42?fail").status_code == 500
        assert int(self.client.get("/pay/42").content) > int(first.content)
        assert holders() == 0


class InATransaction(Committed, TestCase):  # type: ignore[misc]
    """With one."""


class Fenced(TestCase):  # type: ignore[misc]
    """The test's own transaction keeps the row of the lock's holder until the test ends."""

    def test_once(self) -> None:
        with lock("order:fenced", app=app, timeout=0) as lease:
            fencing.admit(connection, lease)

    def test_and_again(self) -> None:
        self.test_once()
