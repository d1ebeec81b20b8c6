"""The resource that the lock protects: it refuses what is late, and does nothing twice."""

from __future__ import annotations


def write(fence: tuple[int, ...], slot: int, token: int) -> tuple[int, ...] | None:
    """The fence after a write with *token*, or ``None`` when it has seen a newer one."""
    if token < fence[slot]:
        return None
    return (*fence[:slot], token, *fence[slot + 1 :])


def once(effects: tuple[int, ...], task: int) -> tuple[int, ...]:
    """The effects by task after one more run of *task*: what has happened is not repeated."""
    if effects[task]:
        return effects
    return (*effects[:task], effects[task] + 1, *effects[task + 1 :])
