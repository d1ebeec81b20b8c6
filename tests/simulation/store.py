"""A process's way to the lock store: the shipped one in memory, behind a wire where all may happen.

Each call gives way before and after it. A fault loses the answer, refuses the call, or is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partialmethod
from typing import Any, ClassVar, Self, TypeVar

from celery_dlock.core.operations import Operation
from celery_dlock.core.state import Run
from celery_dlock.stores.base import BackendOptions, Guarantee, LockBackend, Reply, Trait
from celery_dlock.stores.memory import MemoryBackend
from tests.simulation.kernel import BEGINNING, Kernel
from tests.simulation.tasks import evidence

T = TypeVar("T")
V = TypeVar("V")


def clock() -> int:
    return int((BEGINNING + Kernel.here().now) * 1e6)


class Store(LockBackend):
    """All processes' connections to the one *memory*."""

    traits: ClassVar[frozenset[Trait]] = MemoryBackend.traits | {Trait.MULTI_PROCESS}
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 10_000
    memory: ClassVar[MemoryBackend]
    faults: ClassVar[Any]

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        return cls()

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        kernel = Kernel.here()
        told = _told(name, args)
        kernel.pause(f"to ask {told}")
        with self.faults.at_store():
            answer = getattr(self.memory, name)(*args, **kwargs)
            if name == "apply":
                operation = args[0]
                evidence().heard(operation, answer.verdict)
                if isinstance(answer.verdict, Run):
                    holders = self.memory.peek(operation.claim.key).holders
                    evidence().granted(operation.claim, holders, clock())
        kernel.pause(f"being told of {told}: {getattr(answer, 'verdict', '')}")
        return answer

    def apply(self, operation: Operation[V]) -> Reply[V]:
        reply: Reply[V] = self._call("apply", operation)
        return reply

    renew = partialmethod(_call, "renew")
    sweep = partialmethod(_call, "sweep")
    parked = partialmethod(_call, "parked")
    message = partialmethod(_call, "message")
    dead = partialmethod(_call, "dead")
    dead_of = partialmethod(_call, "dead_of")
    count_dead = partialmethod(_call, "count_dead")
    position = partialmethod(_call, "position")
    swap = partialmethod(_call, "swap")
    swapped = partialmethod(_call, "swapped")
    peek = partialmethod(_call, "peek")
    look = partialmethod(_call, "look")
    keys = partialmethod(_call, "keys")

    def now(self) -> int:
        return clock()

    def close(self) -> None: ...


def _told(name: str, args: Sequence[Any]) -> str:
    if name != "apply":
        return name
    operation = args[0]
    claim = operation.claim
    outcome = getattr(operation, "outcome", "")
    return f"{type(operation).__name__} {outcome} {claim.task[:8]} at {claim.key}"
