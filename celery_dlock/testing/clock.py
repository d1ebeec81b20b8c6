"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """Microseconds since the epoch, as a store's ``BackendOptions.clock``.

    A copy that is pickled into another process stands at the same instant and moves on its own.
    """

    def __init__(self, now: int = 1_800_000_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on by *seconds*; a negative number steps back, as real clocks do."""
        self.now += round(seconds * 1_000_000)
