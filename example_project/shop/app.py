"""The shop's Celery app.

A worker: ``celery -A example_project.shop.app worker``, and ``beat`` for what is due by the clock.
"""

from __future__ import annotations

from celery import Celery
from celery.schedules import crontab

from example_project.settings import FOLDER, SETTINGS

MODULES = ("tasks", "careless", "unfenced")

app = Celery("shop", include=[f"example_project.shop.{name}" for name in MODULES])
app.conf.update(SETTINGS)
app.conf.dlock_doctor_ignore = {
    "broker-filesystem": "remind() publishes again what a killed worker had taken"
}
app.conf.beat_schedule_filename = str(FOLDER / "beat")
app.conf.beat_schedule = {
    "remind": {"task": "example_project.shop.tasks.remind", "schedule": 60},
    "report": {"task": "example_project.shop.tasks.report", "schedule": crontab(hour=1, minute=0)},
}
