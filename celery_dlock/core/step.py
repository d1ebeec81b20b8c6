"""What one application of a rule comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from celery_dlock.core.state import Grant, KeyState

V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Step(Generic[V_co]):
    """The next state, the verdict, and the turns whose messages are to be published now."""

    state: KeyState
    verdict: V_co
    wakes: tuple[Grant, ...] = ()
