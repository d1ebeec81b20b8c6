"""Where a hold must have been copied before it counts: what ``dlock_wait_replicas`` says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Copies:
    """Where a hold must have been copied before it counts, and how many seconds that may take.

    ``on_disk``: on so many replicas and on the master it is in the log on disk, not only in memory.
    """

    replicas: int
    on_disk: bool = False
    timeout: float = 1.0
