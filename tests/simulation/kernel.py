"""Green threads of simulated processes, switched where the seed says, and the time they live in.

Only one runs, until it gives way: at each call of the store or the broker, where it sleeps or waits
for another. Who goes on is drawn. Time stands still while anybody can go on, and then it is that of
the next who sleeps. So a schedule is its seed, and nothing in it takes longer than to compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from random import Random
from typing import Any, ClassVar

from greenlet import getcurrent, greenlet

#: Seconds since 1970 as a schedule begins.
BEGINNING = 1_700_000_000.0
#: Instants are sums of decimals: who sleeps until one wakes a little later.
INSTANT = 1e-6


class Killed(BaseException):
    """The process is no more: what is left of its stack does nothing."""


class Process:
    """One process: what dies together, and the *values* that some *places* have in it."""

    def __init__(self, name: str, places: Sequence[tuple[Any, str]], values: Sequence[Any]) -> None:
        self.name = name
        self.alive = True
        self.frozen_until = 0.0
        self.places = places
        self.values = values
        self.greens: dict[Green, None] = {}
        self.at_death: list[Callable[[], object]] = []

    def __str__(self) -> str:
        return self.name

    def enter(self) -> None:
        for (where, name), value in zip(self.places, self.values, strict=True):
            setattr(where, name, value)

    def leave(self) -> None:
        self.values = [getattr(where, name) for where, name in self.places]


class Green:
    """A green thread of *process*."""

    def __init__(self, process: Process, call: Callable[[], object], name: str) -> None:
        self.process = process
        self.call = call
        self.name = name
        self.at = ""
        self.waits: int | None = None  # the number of its wait, if it waits
        self.woken = False
        self.struck: BaseException | None = None
        self.over = False
        self.waiters: list[Green] = []
        self.greenlet: greenlet = greenlet(self._run, parent=Kernel.here().hub)

    def __str__(self) -> str:
        return f"{self.process}/{self.name}"

    def _run(self) -> None:
        kernel = Kernel.here()
        try:
            self.call()
        except Killed:
            pass
        except BaseException as exc:  # a thread that ends so is a defect of somebody
            if self.process.alive:
                kernel.broken.append((str(self), exc))
        finally:
            self.over = True
            self.process.greens.pop(self, None)
            for waiter in self.waiters:
                kernel.wake(waiter)


class Kernel:
    """The scheduler of one schedule; *stays* is how likely who runs goes on at once."""

    current: ClassVar[Kernel | None] = None

    def __init__(self, random: Random, stays: float) -> None:
        self.random = random
        self.now = 0.0
        self.steps = 0
        self.running: Green | None = None
        self.broken: list[tuple[str, BaseException]] = []
        self.tell: Callable[[str], object] | None = None
        self._stays = stays
        self.hub = getcurrent()
        self._ready: list[Green] = []
        self._timers: list[tuple[float, int, Green]] = []
        self._waits = 0
        self._processes: dict[Process, None] = {}
        self._inside: Process | None = None

    @classmethod
    def here(cls) -> Kernel:
        assert cls.current is not None, "no schedule is played"
        return cls.current

    @contextmanager
    def installed(self) -> Iterator[None]:
        Kernel.current = self
        try:
            yield
        finally:
            for process in list(self._processes):  # also who waits for ever
                self.kill(process)
            Kernel.current = None

    def spawn(self, process: Process, call: Callable[[], object], name: str) -> Green:
        green = Green(process, call, name)
        if process.alive:
            process.greens[green] = None
            self._processes[process] = None
            self._ready.append(green)
        return green

    # For whoever runs.

    def me(self) -> Green:
        """Who runs; nobody of a dead process does."""
        green = self.running
        assert green is not None, "only green threads wait"
        if not green.process.alive:
            raise Killed
        return green

    def pause(self, at: str) -> None:
        """Somebody else may go on."""
        me = self.me()
        me.at = at
        self._ready.append(me)
        self._switch(me)

    def wait(self, seconds: float | None) -> bool:
        """Whether it was woken, and not only *seconds* have passed."""
        me = self.me()
        self._waits += 1
        me.waits, me.woken = self._waits, False
        if seconds is not None:
            heappush(self._timers, (self.now + max(0.0, seconds), self._waits, me))
        self._switch(me)
        return me.woken

    def wake(self, green: Green) -> None:
        if green.waits is not None:
            green.waits, green.woken = None, True
            self._ready.append(green)

    def strike(self, green: Green, error: BaseException) -> None:
        """Raise *error* in *green* where it is, as a signal does."""
        green.struck = error
        self.wake(green)

    def _switch(self, me: Green) -> None:
        self.hub.switch()
        if not me.process.alive:
            raise Killed
        if me.struck is not None:
            error, me.struck = me.struck, None
            raise error

    # For the hub.

    def step(self) -> bool:
        """Let somebody go on; whether there was anybody, at any time to come."""
        green = self._next()
        if green is None:
            return False
        self.steps += 1
        if green.process is not self._inside:
            if self._inside is not None:
                self._inside.leave()
            green.process.enter()
            self._inside = green.process
        if self.tell is not None:
            self.tell(f"{green} goes on {green.at}")
        self.running = green
        green.greenlet.switch()
        self.running = None
        return True

    def _next(self) -> Green | None:
        while True:
            self._wake_sleepers()
            while self._ready:
                at = len(self._ready) - 1
                if at and self.random.random() >= self._stays:
                    at = self.random.randrange(at + 1)
                ready = self._ready
                ready[at], ready[-1] = ready[-1], ready[at]
                green = ready.pop()
                if green.process.frozen_until > self.now:
                    self._waits += 1
                    green.waits = self._waits
                    heappush(self._timers, (green.process.frozen_until, self._waits, green))
                elif not green.over:
                    return green
            if not self._timers:
                return None
            self.now = max(self.now, self._timers[0][0] + INSTANT)

    def _wake_sleepers(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            _, number, green = heappop(self._timers)
            if green.waits == number and not green.over:
                green.waits = None
                self._ready.append(green)

    def kill(self, process: Process) -> None:
        """Nothing of *process* goes on; what others learn of it they learn at once."""
        if not process.alive:
            return
        process.alive = False
        before, self.running = self.running, None
        for green in list(process.greens):
            if green.greenlet and green is not before:
                self.running = green
                green.greenlet.parent = getcurrent()  # where it ends, and not at the hub
                green.greenlet.throw(Killed)
            green.over = True
        self.running = before
        for call in process.at_death:
            call()
