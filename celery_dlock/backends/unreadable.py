"""What a store says that answers, and can tell nothing of some of the keys it was asked for."""

from __future__ import annotations

from collections.abc import Collection

from celery_dlock.errors import BackendUnavailable


class KeysUnavailable(BackendUnavailable):
    """Nothing can be told of *keys* now; of the others it can, if they are asked for alone."""

    def __init__(self, reason: str, keys: Collection[str]) -> None:
        super().__init__(reason, keys)
        self.reason = reason
        self.keys = keys

    def __str__(self) -> str:
        return self.reason
