"""A monotonic clock that stands still until a test moves it."""

from __future__ import annotations


class Monotonic:
    """Seconds, as ``time.monotonic``; starts anywhere but at 0, as the real one does."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
