"""The demo's hand in the task: the provider's answer to chosen events is a long time coming.

``hold`` an event before it is published; the first run of it says in a file where it stands and
waits until ``release``. Later runs of the same event pass. The shop knows nothing of this.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from celery_dlock import current_lease
from example_project.events import provider


@dataclass(frozen=True, slots=True)
class Standing:
    """Who stands in the body of a held event: the process, its group, its fencing token."""

    event_id: str
    pid: int
    group: int
    token: int


class Stage:
    """The demo's side, and the task's, of the files below *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "stage"
        self._folder.mkdir(exist_ok=True)

    def hold(self, event_id: str) -> None:
        """Have the first run of *event_id* stand still."""
        self._file(event_id, "hold").touch()

    def release(self, event_id: str) -> None:
        """Let it go on."""
        self._file(event_id, "hold").unlink()

    def standing(self, event_id: str) -> Standing | None:
        """Who stands still in *event_id* now, if anybody does."""
        file = self._file(event_id, "standing")
        return Standing(**json.loads(file.read_text())) if file.exists() else None

    def enter(self, event_id: str) -> None:
        """Called in the body: stand still if this is a held event and nobody stood here before."""
        hold = self._file(event_id, "hold")
        if not hold.exists() or self._file(event_id, "standing").exists():
            return
        me = Standing(event_id, os.getpid(), os.getpgrp(), current_lease().fencing_token)
        written = self._file(event_id, "part")
        written.write_text(json.dumps(asdict(me)))
        written.rename(self._file(event_id, "standing"))
        while hold.exists():
            time.sleep(0.01)

    def _file(self, event_id: str, kind: str) -> Path:
        return self._folder / f"{event_id}.{kind}"


def tell(event_id: str) -> None:
    """A provider for ``SHOP_PROVIDER``."""
    from example_project.settings import FOLDER

    provider.simulated(event_id)
    Stage(FOLDER).enter(event_id)
