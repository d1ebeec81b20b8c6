"""A camera as the users of ``celery events`` write them: it notes the events that it sees."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery.events.snapshot import Polaroid

from tests.services.lab import Journal


class Camera(Polaroid):  # type: ignore[misc]
    """Writes each to a journal of the lab."""

    def __init__(self, state: Any, **options: Any) -> None:
        super().__init__(state, **options)
        folder = json.loads(Path(os.environ["LAB_CONFIG"]).read_text())["folder"]
        self._journal = Journal(Path(folder) / "seen")
        state.event_callback = self._note

    def _note(self, state: Any, event: dict[str, Any]) -> None:
        fields = {name: value for name, value in event.items() if name not in ("type", "pid")}
        self._journal.write(event["type"], **fields)
