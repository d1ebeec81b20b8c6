"""How many members of a store have to agree, and how many may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from celery_dlock.inspection.doctor.finding import Finding


def odd(store: Literal["zookeeper", "etcd"], members: int, where: str) -> Iterator[Finding]:
    """Whether *members* bear the loss of one, and as many losses as their number could."""
    if members == 1:
        yield Finding(
            f"{store}-single",
            "weak",
            where,
            promise="While it is away no lock is taken, given back or renewed; with its disk all "
            "is lost: locks, messages that wait, and the order of tokens.",
            found="one server",
            mend="run three on three hosts",
        )
    elif members % 2 == 0:
        yield Finding(
            f"{store}-even",
            "weak",
            where,
            promise=f"{members} servers bear the loss of no more of them than {members - 1} do.",
            found=f"{members} servers vote",
            mend="add one, or take one out",
        )
