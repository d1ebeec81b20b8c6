"""``celery -A shop beat -S dlock``: one beat leads, and the others stand by.

The scheduler that says what is due (``dlock_beat_scheduler``) exists only while this beat leads.
So one that stands by writes no schedule anywhere, and what it has read is never old.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery.beat import Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name
from kombu.exceptions import OperationalError

from celery_dlock.beat.fenced_scheduler import FencedScheduler
from celery_dlock.beat.leader import ASK, Leader
from celery_dlock.beat.tick_ledger import Deposed, NotNow, StepDown, TickLedger, noting
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.locks.throttled_warning import ThrottledWarning
from celery_dlock.not_started import or_not_started
from celery_dlock.runtime import naming, runtime
from celery_dlock.stores.base import Trait

logger = logging.getLogger("celery_dlock")

#: A beat that has given up the lead leaves it to the others for so many seconds; for longer, up to
#: the second number, where it could not send again and again.
REST, LONG_REST = 2 * ASK, 15.0

#: Seconds after which a beat whose scheduler does not come back leads no more; two leases if that
#: is longer.
HANGS = 60.0


class LeaderScheduler(Scheduler):  # type: ignore[misc]
    """Celery's beat runs this one; what it sends, the scheduler inside sends while it leads.

    Raises :exc:`~celery_dlock.ConfigurationError` for a lock store that other beats cannot see, and
    for a ``dlock_beat_scheduler`` that is none. A store or a broker that does not answer is no
    error: beat stands by until it does.
    """

    #: RedBeat asks the scheduler that is run for the lock to wait for: it has none.
    lock_key = None

    def __init__(
        self, app: Any, max_interval: float | None = None, lazy: bool = False, **options: Any
    ) -> None:
        with or_not_started():
            self._class = _checked(app)
        if not lazy:  # Celery makes another one before it, for the banner
            runtime(app).sinks.warn_of_unseen()
        self._options = {**options, "app": app, "max_interval": max_interval}
        self._leader = Leader(app)
        self._scheduler: FencedScheduler | None = None
        self._next = self._looks = 0.0
        self._rest = REST
        self._warning = ThrottledWarning()
        super().__init__(app, max_interval=max_interval, lazy=True, **options)
        self.max_interval: float = min(self.max_interval, ASK)

    @property
    def info(self) -> str:
        return f"    . leads by -> {self._leader.key}\n    . schedule by -> {self._class.__name__}"

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Lead, or ask for it; the seconds until the next time. Never raises for a store."""
        with stops_wait():
            try:
                wait = self._lead() if self._scheduler else self._stand_by()
            except NotNow as exc:
                self._warning.warn("beat: %s", exc)
            except StepDown as exc:
                if isinstance(exc, Deposed):
                    self._leader.lose(str(exc))
                self._step_down(str(exc))
            except BackendUnavailable as exc:
                self._warning.warn("beat: the lock store is unavailable: %s", exc)
            except ConfigurationError:
                raise  # it would be there every time
            except OperationalError as exc:
                self._step_down(f"it cannot send: {exc}")
            except Exception:
                logger.exception("beat: the scheduler failed")
                self._step_down("its scheduler failed")
            else:
                return min(wait, self.max_interval)
        return self.max_interval

    def _stand_by(self) -> float:
        if self._leader.rests():
            return self.max_interval
        leads = self._leader.campaign()
        self._warning.resolved("beat: the lock store is available again")
        if not leads:
            return self.max_interval
        locks, lease = runtime(self.app), self._leader.lease
        assert lease is not None
        try:
            records = TickLedger(locks.backend, self._leader.key, lease.fencing_token)
            with self._watched():
                self._scheduler = self._inside()
                self._scheduler.begin(
                    *(self._leader, records, locks.sinks.emit),
                    catches_up=locks.settings.beat_catch_up == "once",
                )
            self._leader.check()
        except (NotNow, BackendUnavailable) as exc:  # there is nobody here to lead
            raise StepDown(str(exc)) from exc
        token = lease.fencing_token
        logger.info("beat: %s leads, with token %d", self._leader.who, token)
        self._next = 0.0
        return 0.0

    def _inside(self) -> FencedScheduler:
        try:
            return self._class(**self._options)
        except TypeError as exc:  # an entry with an option that there is not, say
            what = f"{self._class.__name__} cannot be made of this schedule"
            raise ConfigurationError(f"{what}: {exc}") from exc

    def _lead(self) -> float:
        assert self._scheduler is not None
        self._leader.check()
        now = time.monotonic()
        if now >= self._looks:
            self._looks = now + ASK
            with suppress(BackendUnavailable):
                if self._leader.asked_to_go():
                    raise StepDown("it was asked to step down")
        if now >= self._next:
            with self._watched():
                wait = self._scheduler.tick()
            self._next = time.monotonic() + (wait or 0.0)
            self._rest = REST
        self._warning.resolved("beat: it works again")
        return max(0.0, self._next - time.monotonic())

    def _step_down(self, reason: str) -> None:
        logger.warning("beat: %s no longer leads: %s", self._leader.who, reason)
        self._close()
        self._leader.rest(self._rest)
        self._rest = min(2 * self._rest, LONG_REST)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """The lease is renewed whatever the block does: so another beat leads if it hangs."""
        lease = self._leader.lease
        timer = threading.Timer(max(HANGS, 2 * lease.ttl if lease else 0), self._leader.abandon)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _close(self) -> None:
        scheduler, self._scheduler = self._scheduler, None
        try:
            with self._watched():
                if scheduler is not None and self._leader.leads():
                    scheduler.close()
                elif scheduler is not None:
                    scheduler.drop()
        except Exception:
            logger.exception("beat: the scheduler could not be closed")
        finally:
            self._leader.retire()

    def should_sync(self) -> bool:
        return self._scheduler is not None and bool(self._scheduler.should_sync())

    def _do_sync(self) -> None:
        if self._scheduler is not None:
            with self._watched():
                self._scheduler._do_sync()  # noqa: SLF001  # as Celery's service calls it

    def close(self) -> None:
        """Another beat leads from now on."""
        with stops_wait():
            self._close()


def _checked(app: Any) -> type[FencedScheduler]:
    """The class of the scheduler inside, where all that is configured for a beat is right."""
    locks = runtime(app)
    with naming(app):
        if Trait.MULTI_PROCESS not in locks.backend.traits:
            raise ConfigurationError(
                "beat -S dlock needs a lock store that other processes see: with this dlock_url "
                "every beat would lead"
            )
        noting(locks.backend)
        return fenced(locks.settings.beat_scheduler)


def fenced(name: str) -> type[FencedScheduler]:
    """The class called *name*, or its path, as one that is led."""
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    try:
        scheduler = symbol_by_name(name, aliases=aliases)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(f"dlock_beat_scheduler: cannot import {name}: {exc}") from exc
    if not isinstance(scheduler, type) or not issubclass(scheduler, Scheduler):
        raise ConfigurationError(f"dlock_beat_scheduler: {name} is no scheduler of Celery's beat")
    if issubclass(scheduler, LeaderScheduler):
        raise ConfigurationError("dlock_beat_scheduler is the one inside, not dlock itself")
    return type(scheduler.__name__, (FencedScheduler, scheduler), {})


@contextmanager
def stops_wait() -> Iterator[None]:
    """A signal to stop comes in after the block; a second one, while it waits, at once.

    Celery's handler raises wherever the main thread is: a tick would be claimed and not sent, or
    the store's mutex taken for good.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def wait(number: int, _: object) -> None:
        if came:
            raise SystemExit
        came.append(number)

    stops = (signal.SIGTERM, signal.SIGINT)
    usual = [signal.signal(stop, wait) for stop in stops]
    try:
        yield
    finally:
        for stop, handler in zip(stops, usual, strict=True):
            signal.signal(stop, handler or signal.SIG_DFL)
        for number in came[:1]:
            signal.raise_signal(number)
