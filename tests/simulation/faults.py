"""Strikes what a plan says, as often as it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from celery_dlock.errors import BackendUnavailable
from tests.simulation.broker import missed, refused
from tests.simulation.kernel import Kernel
from tests.simulation.plan import OF_BROKER, OF_STORE, Fault, Kind, Plan


class Faults:
    """Those of one plan: which have struck, and what is struck now."""

    def __init__(self, plan: Plan) -> None:
        self.struck: list[Fault] = []
        self._of_store = {each.at: each for each in plan.faults if each.kind in OF_STORE}
        self._of_broker = {each.at: each for each in plan.faults if each.kind in OF_BROKER}
        others = (each for each in plan.faults if each.kind not in OF_STORE | OF_BROKER)
        self._of_steps = sorted(others, key=lambda each: -each.at)
        self._calls = self._publishes = 0
        self._away = {Kind.STORE_AWAY: 0.0, Kind.BROKER_AWAY: 0.0}

    def due(self, steps: int) -> Iterator[Fault]:
        """Those of processes that strike by now."""
        while self._of_steps and self._of_steps[-1].at <= steps:
            fault = self._of_steps.pop()
            if fault.kind in self._away:
                self._away[fault.kind] = Kernel.here().now + fault.seconds
                self._strikes(fault)
            else:
                yield fault

    def has_struck(self, fault: Fault) -> None:
        self._strikes(fault)

    def _strikes(self, fault: Fault) -> None:
        self.struck.append(fault)
        kernel = Kernel.here()
        if kernel.tell is not None:
            kernel.tell(f"FAULT: {fault.kind}, {fault.seconds} s")

    @contextmanager
    def at_store(self) -> Iterator[None]:
        """Around one call."""
        self._calls += 1
        unavailable = BackendUnavailable("the store does not answer")
        with self._around(
            self._of_store.pop(self._calls, None), Kind.STORE_AWAY, lambda: unavailable
        ):
            yield

    @contextmanager
    def at_publish(self) -> Iterator[None]:
        self._publishes += 1
        with self._around(self._of_broker.pop(self._publishes, None), Kind.BROKER_AWAY, refused):
            yield

    @contextmanager
    def _around(
        self, fault: Fault | None, away: Kind, error: Callable[[], Exception]
    ) -> Iterator[None]:
        kernel = Kernel.here()
        if kernel.now < self._away[away]:
            raise error()
        if fault is None:
            yield
            return
        self._strikes(fault)
        if fault.kind in (Kind.STORE_REFUSES, Kind.BROKER_REFUSES):
            raise error()
        if fault.kind is Kind.BROKER_MISSES:
            raise missed()
        if fault.kind is Kind.STORE_BEFORE:
            kernel.wait(fault.seconds)
        yield
        if fault.kind is Kind.STORE_AFTER:
            kernel.wait(fault.seconds)
        if fault.kind in (Kind.STORE_LOSES, Kind.BROKER_LOSES):
            raise error()
