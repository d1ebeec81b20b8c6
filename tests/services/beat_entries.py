"""Entries of a beat's schedule as plain values, so that whoever checks need not ask Celery.

They go to the beats as JSON, and the beats make Celery's schedules of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar


@dataclass(frozen=True, slots=True)
class Entry:
    """*task* is ``locked`` or ``plain``; one of the three that follow says when.

    *every* is in seconds, *minute* as in a crontab, *solar* an event with latitude and longitude.
    """

    name: str
    task: str
    every: float | None = None
    minute: str | None = None
    solar: tuple[str, float, float] | None = None

    @property
    def config(self) -> dict[str, Any]:
        """What JSON can carry."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Entry:
        sun = config["solar"]
        return cls(**{**config, "solar": tuple(sun) if sun else None})

    def celery_schedule(self, app: Celery) -> BaseSchedule:
        """The schedule that Celery knows."""
        if self.every is not None:
            return schedule(self.every, app=app)
        if self.minute is not None:
            return crontab(minute=self.minute, app=app)
        assert self.solar is not None
        return solar(*self.solar, app=app)
