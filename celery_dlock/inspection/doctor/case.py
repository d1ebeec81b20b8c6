"""What is examined: an application, its settings, and by which clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_dlock.inspection.doctor.clock import Clock
from celery_dlock.settings import Settings


@dataclass(frozen=True, slots=True)
class Case:
    """*app* is a Celery application, all tasks of which are known. *clock* is this host's."""

    app: Any
    settings: Settings
    clock: Clock

    @property
    def conf(self) -> Any:
        """Celery's own configuration."""
        return self.app.conf
