"""The Django application whose migration makes the tables: ``celery_dlock.fencing``."""

from __future__ import annotations

from django.apps import AppConfig


class FencingConfig(AppConfig):  # type: ignore[misc]
    """It has no models."""

    name = "celery_dlock.fencing"
    label = "celery_dlock_fencing"
    verbose_name = "Fenced writes"
