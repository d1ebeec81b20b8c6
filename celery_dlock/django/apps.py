"""The Django application whose migration makes the store's tables: ``celery_dlock.django``."""

from __future__ import annotations

from django.apps import AppConfig


class LockStoreConfig(AppConfig):  # type: ignore[misc]
    """It has no models."""

    name = "celery_dlock.django"
    label = "celery_dlock_django"
    verbose_name = "Lock store"
