"""The Celery app of the order events."""

from __future__ import annotations

from celery import Celery

from example_project.settings import SETTINGS

app = Celery("events", include=["example_project.events.tasks"])
app.conf.update(SETTINGS)
