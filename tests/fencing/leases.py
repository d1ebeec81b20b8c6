"""Leases without a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Claim, Mode


def term(
    key: str = "order:42",
    token: int = 1,
    nonce: str = "n1",
    mode: Mode = Mode.EXCLUSIVE,
    slot: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Term:
    """Held for an hour."""
    claim = Claim(key, task="t:0:0", nonce=nonce, ttl=3600 * 1_000_000, mode=mode)
    return Term(claim, slot, 0 if mode is Mode.SHARED else token, clock(), clock)


def lease(*terms: Term, **options: Any) -> Lease:
    return Lease(terms, "strict", **options)
