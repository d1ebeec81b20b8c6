"""Two applications in one process: a key of the one says nothing about the other's."""

from __future__ import annotations

from celery import Celery

from celery_dlock import lock
from celery_dlock.runtime import runtime


def test_a_key_held_in_one_store_is_not_held_in_another() -> None:
    shop, bank = (Celery(name, set_as_current=False) for name in ("shop", "bank"))
    for app in (shop, bank):
        app.conf.dlock_url = "memory://"

    with lock("order:42", app=shop), lock("order:42", app=bank):
        assert runtime(bank).backend.peek("order:42").holders
