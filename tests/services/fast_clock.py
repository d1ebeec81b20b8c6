"""A clock that runs faster than time, the same in every process of a machine, and can be put on.

It is told by the monotonic clock, so the machine's own may do what it likes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class FastClock:
    """It shows *base* at the monotonic instant *began*, and *speed* seconds for each of ours."""

    base: datetime
    began: float
    speed: float
    put_on: Path

    @classmethod
    def started(cls, base: datetime, speed: float, folder: Path) -> Self:
        """One that starts now; *folder* is where it is noted how far it was put on since."""
        return cls(base, time.monotonic(), speed, folder / "clock")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        base = datetime.fromisoformat(config["base"])
        return cls(base, config["began"], config["speed"], Path(config["put_on"]))

    @property
    def config(self) -> dict[str, Any]:
        """What JSON can carry to another process."""
        given = {"base": self.base.isoformat(), "put_on": str(self.put_on)}
        return {**given, "began": self.began, "speed": self.speed}

    def now(self) -> datetime:
        elapsed = (time.monotonic() - self.began) * self.speed + self._jumped()
        return (self.base + timedelta(seconds=elapsed)).astimezone(UTC)

    def jump(self, seconds: float) -> None:
        """Put it on by so many of its own seconds, or back, for every process at once."""
        written = self.put_on.with_suffix(".part")
        written.write_text(str(self._jumped() + seconds))
        written.rename(self.put_on)

    def _jumped(self) -> float:
        try:
            return float(self.put_on.read_text())
        except FileNotFoundError:
            return 0.0
