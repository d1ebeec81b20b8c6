"""Rows of django-celery-beat in a SQLite file, and its clock: the one that a test moves.

Django is set up once in a process. Here its default database is this one for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connections
from django.utils import timezone

from tests.fencing.clients import configure_django
from tests.services.beats import Beats, beats

#: ``make(**config)``: three beats around rows, on a clock that the test moves.
Make = Callable[..., AbstractContextManager[Beats]]

Now = Callable[[], datetime]


@contextmanager
def around_rows(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Beats with django-celery-beat inside, around a database without a row in *folder*/rows."""

    @contextmanager
    def make(**config: Any) -> Iterator[Beats]:
        with beats(folder, {}, **{"dlock_beat_scheduler": "django", **config}) as of:
            tell_the_time(patch, lambda: of.now)
            yield of

    (folder / "rows").mkdir()
    with rows_in(folder / "rows"):
        yield make


def use_rows(folder: Path) -> None:
    """The default database is the one in *folder*."""
    configure_django()
    wanted = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(folder / "shop.db"),
        "OPTIONS": {"timeout": 60},
    }
    whole = connections.configure_settings({"default": wanted})
    connections.settings["default"] = whole["default"]
    connections["default"] = connections.create_connection("default")


@contextmanager
def rows_in(folder: Path) -> Iterator[None]:
    """The tables are in *folder*, and nothing is in them."""
    configure_django()
    kept = connections.settings["default"]
    use_rows(folder)
    try:
        with connections["default"].schema_editor() as editor:
            for model in apps.get_app_config("django_celery_beat").get_models():
                editor.create_model(model)
        yield
    finally:
        connections["default"].close()
        del connections["default"]
        connections.settings["default"] = kept


def rows(model: str) -> Any:
    """The rows of a model of django-celery-beat, imported when Django is set up."""
    return apps.get_model("django_celery_beat", model).objects


def every(seconds: int) -> dict[str, Any]:
    return {"interval": rows("IntervalSchedule").create(every=seconds, period="seconds")}


def crontab(**when: Any) -> dict[str, Any]:
    return {"crontab": rows("CrontabSchedule").create(**when)}


def solar(event: str, latitude: float, longitude: float) -> dict[str, Any]:
    where = {"event": event, "latitude": latitude, "longitude": longitude}
    return {"solar": rows("SolarSchedule").create(**where)}


def clocked(when: datetime) -> dict[str, Any]:
    return {"clocked": rows("ClockedSchedule").create(clocked_time=when), "one_off": True}


def task(name: str = "pay", **fields: Any) -> Any:
    return rows("PeriodicTask").create(name=name, task=name, **fields)


def saved(row: Any, **changes: Any) -> Any:
    """*row* as it is in the database; with *changes*, as an operator saves it."""
    found = type(row).objects.get(pk=row.pk)
    for field, value in changes.items():
        setattr(found, field, value)
    if changes:
        found.save()
    return found


def forget_runs(row: Any) -> None:
    """The database has not heard that *row* was ever run."""
    type(row).objects.filter(pk=row.pk).update(
        enabled=True, total_run_count=0, last_run_at=None, date_changed=row.date_changed
    )


def tell_the_time(to: pytest.MonkeyPatch, now: Now) -> None:
    """Django and django-celery-beat take for now what *now* says."""
    from django_celery_beat import schedulers, tzcrontab

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return now().astimezone(tz) if tz else now().replace(tzinfo=None)

        @classmethod
        def utcnow(cls) -> Any:
            return now().astimezone(UTC).replace(tzinfo=None)

    to.setattr(timezone, "now", lambda: now() if settings.USE_TZ else Clock.now())
    to.setattr(schedulers, "datetime", SimpleNamespace(datetime=Clock, timedelta=timedelta))
    to.setattr(tzcrontab, "datetime", Clock)
