"""What every worker does again and again, in a thread of its main process."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from typing import Any, ClassVar

from celery import bootsteps

from celery_dlock.core.outage import Outage
from celery_dlock.errors import BackendUnavailable

logger = logging.getLogger("celery_dlock")


class Rounds(bootsteps.StartStopStep):  # type: ignore[misc]
    """One thread, started after the pool has forked. It survives a round that fails."""

    requires = frozenset({"celery.worker.components:Pool"})

    #: What a round that failed has left undone, for the log.
    undone: ClassVar[str]
    #: Seconds until the next round after one that failed.
    pause: ClassVar[float]

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._app = parent.app
        self._stopped = threading.Event()
        self._outage = Outage()
        name = f"celery-dlock-{type(self).__name__.lower()}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, parent: Any) -> None:
        self._thread.start()

    def stop(self, parent: Any) -> None:
        self._stopped.set()

    @abstractmethod
    def round(self) -> float:
        """Do it once; seconds until the next time."""

    def _run(self) -> None:
        while not self._stopped.wait(self._next_in()):
            pass

    def _next_in(self) -> float:
        try:
            pause = self.round()
        except BackendUnavailable as exc:
            self._outage.lasts("%s: %s", self.undone, exc)
        except Exception:  # a defect must not end the thread
            logger.exception(self.undone)
        else:
            self._outage.over("the lock store answers again")
            return pause
        return self.pause
