"""A key's guard as text: what every operation on the key reads and most of them write.

It holds the claims that run and the turns that were called, both bounded by the key's limit. The
queue is not in it, for an operation must not cost more when the queue is long.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from celery_dlock.core.state import Ending, Grant, Holder, Mode


def encode(holders: Sequence[Holder], grants: Sequence[Grant]) -> str:
    """JSON with every field by its name."""
    held = {"holders": [asdict(h) for h in holders], "grants": [asdict(g) for g in grants]}
    return json.dumps(held, separators=(",", ":"))


def decode(text: str) -> tuple[tuple[Holder, ...], tuple[Grant, ...]]:
    """What :func:`encode` was given. Raises :exc:`ValueError` for anything else."""
    try:
        held = json.loads(text)
        return (
            tuple(Holder(**_fields(row)) for row in held["holders"]),
            tuple(_grant(_fields(row)) for row in held["grants"]),
        )
    except (TypeError, KeyError) as exc:
        raise ValueError(f"not a guard: {exc!r}") from exc


def _grant(fields: dict[str, Any]) -> Grant:
    if fields["ending"] is not None:
        fields["ending"] = Ending(fields["ending"])
    return Grant(**fields)


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "mode": Mode(row["mode"])}
