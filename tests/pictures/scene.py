"""A shop at a busy hour, for pictures: keys that are held and waited for, and what has happened."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from celery import Celery

from celery_dlock.core.events import (
    Acquired,
    Contended,
    Event,
    Lost,
    Parked,
    Released,
    StaleRejected,
    Subject,
)
from celery_dlock.core.state import Claim, WaitMode
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.monitoring.history import HistorySink
from celery_dlock.registry import open_backend
from celery_dlock.runtime import forget, runtime
from celery_dlock.settings import HistoryOptions
from celery_dlock.testing.contract.words import running
from tests.services.brokers import over_folder
from tests.web.conftest import MINUTE, die, free

SHIP, PAY, REFUND = "7c9e6679-ship", "a81bc81b-pay", "3f0c1a52-refund"


def busy_shop(folder: Path) -> Celery:
    """Its application; locks, history and broker are files in *folder*."""
    shop = Celery("shop", set_as_current=False)
    shop.conf.update(
        **over_folder(folder),
        dlock_url=f"sqlite:///{folder / 'locks.db'}",
        dlock_history=f"sqlite:///{folder / 'history.db'}",
    )
    token = holds(shop)
    a_dead_message(shop)
    what_happened(shop.conf.dlock_history, token)
    forget(shop)
    return shop


def holds(shop: Celery) -> int:
    """Some keys that are held, for minutes or seconds, and tasks that wait for them; the fencing
    token before those of them.
    """
    here = runtime(shop)
    before = running(here.backend.enter(Claim("order:1", "before:0:0", "n", ttl=MINUTE))).token
    free(shop, "order:1")
    now = time.time_ns() // 1000
    for name, at in (("report(2026-11)", "report:2026-11"), ("refresh(shoes)", "")):
        heard, who = time.time() - 20, f"{'2fac1234-report' if at else '77b1c2d3-refresh'}:0:0"
        claim = UniqueClaim(who, name, "web", heard, at)
        here.backend.swap(name, None, claim.encode(), 60 * MINUTE)
    for key, minutes, tasks in (
        ("order:1002", 7.2, (SHIP, PAY, "6fa459ea-ship", "16fd2706-audit")),
        ("order:1001", 0.3, ("886313e1-pay",)),
        ("order:1003", 2.1, ("9b2e4f10-ship", "d4c74594-pay")),
        ("account:17", 4.6, ("5c1a8e77-settle", "e902893a-settle", "1b4e28ba-close")),
        ("report:2026-11", 0.8, ("2fac1234-report",)),
    ):
        for number, task in enumerate(tasks):
            since = now - int((minutes - number * minutes / 9) * MINUTE)
            options = replace(here.settings.options, clock=partial(int, since))
            store = open_backend(here.settings.url, options)
            by_itself = key == "account:17"
            asks = Claim(
                *(key, f"{task}:0:0", task[:8], 10 * MINUTE),
                wait=WaitMode.PLACE if by_itself else WaitMode.QUEUE,
                patience=10 * MINUTE,
                name=f"shop.{task.partition('-')[2]}",
                where=f"celery@web{1 + len(key) % 3}:4{number + 1}7",
            )
            store.enter(asks, b"{}\n")
            store.close()
    return before


def a_dead_message(shop: Celery) -> None:
    """One that was published for a task that no worker knows any more."""
    backend = runtime(shop).backend
    headers = {"task": "shop.refund_all"}
    message = ParkedMessage(
        "b", "", "", "", "q", "application/json", "utf-8", headers, {}, b"[[],{},{}]"
    )
    hold = Claim("account:23", "before:0:0", "n", ttl=MINUTE)
    backend.enter(hold)
    backend.enter(replace(hold, task=f"{REFUND}:0:0", wait=WaitMode.QUEUE), message.encode({}))
    free(shop, "account:23")
    die(shop, "account:23", f"{REFUND}:0:0")


def refusals(subject: Subject, times: int) -> list[Event]:
    """A task that asks again and again."""
    return [Contended(subject, "order:1002", None, attempt, 2.0) for attempt in range(times)]


def what_happened(url: str, token: int) -> None:
    """A key that goes from task to task, and the one whose lease was lost on the way."""
    key, told = ("order:1002",), list[tuple[float, Event]]()
    for number in range(9):
        ship = Subject(f"{number}d2f5a1c-ship", "shop.ship", "order:{order}")
        minute = 40 - 3.5 * number
        if number:
            by = f"shop.ship[{number - 1}d2f5a1c-ship] on celery@web2:417"
            told += [(minute + 1, Parked(ship, *key, refused=True, by=by))]
        told += [(minute + 0.5 - 0.1 * n, again) for n, again in enumerate(refusals(ship, number))]
        told += [(minute, Acquired(ship, key, (token - 9 + number,), 0.02, 30.0, 1.5, 0.2))]
        held = 28.0 if number == 7 else 12.0
        ended = Lost(ship, *key, "the lease has ended") if number == 4 else None
        told += [(minute - 1 - number % 3, ended or Released(ship, key, "done", held))]
        if number == 4:
            told += [(minute - 2, StaleRejected(ship, "orders", token - 5))]
    pay = Subject("886313e1-pay", "shop.pay", "order:{order}")
    told += [(3, Acquired(pay, ("order:1001",), (token - 1,), 0.01, 30.0))]
    last = Subject(SHIP, "shop.ship", "order:{order}")
    told += [(7.2, Acquired(last, key, (token + 1,), 0.02, 600.0, 60.0, 0.2))]
    waits = Subject(PAY, "shop.pay", "order:{order}")
    by = f"shop.ship[{SHIP}] on celery@web2:417"
    told += [(6.4, Parked(waits, *key, refused=True, by=by))]
    now = time.time_ns() // 1000
    sink = HistorySink(HistoryOptions(url))
    ordered = sorted(told, key=lambda each: -each[0])
    sink.write(
        [(now - int(ago * MINUTE), n, event) for n, (ago, event) in enumerate(ordered, 1)], 0
    )
    sink.close()
