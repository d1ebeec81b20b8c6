"""What is told of a key once, though two threads notice it at the same time."""

from __future__ import annotations


class Once:
    """The keeper's side and the one that leaves may both come with the loss of a key."""

    def __init__(self) -> None:
        self._told: dict[str, object] = {}

    def first(self, key: str) -> bool:
        """Whether nobody has asked this of *key* before; from now on somebody has."""
        mine = object()
        return self._told.setdefault(key, mine) is mine
