"""What must not pass: a type checker says so where types can, and the definition in any case.

Checkers read each line, with celery-types and without, and ``tests/unit/test_misuses.py`` runs it.
A mark that a checker does not need is an error.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from celery_dlock import (
    Debounce,
    FullJitter,
    Limit,
    Ordered,
    Queue,
    Replace,
    Reschedule,
    Shared,
    Skip,
    Unique,
    Wait,
    idempotency_key,
    lock,
    locked_task,
)
from celery_dlock.policies import Contention, Decision, RunLater

#: What is written, and what is said.
Misuses = dict[str, tuple[Callable[[], object], str]]


def fits_not(one: str, two: str, three: str) -> str:
    return one


def number(order: str, amount: int = 1) -> int:
    return amount


async def key_later(order: str, amount: int = 1) -> str:
    return order


async def number_later(order: str, amount: int = 1) -> int:
    return amount


class Deaf:
    def decide(self) -> Decision:
        return RunLater(1)


class Later:
    async def decide(self, contention: Contention) -> Decision:
        return RunLater(1)


#: Of a task with the parameters ``order`` and ``amount``: with the decorator, and with the same
#: options, behind ``lock_``, of a class.
TASKS: Misuses = {
    "unknown parameter": (lambda: locked_task("order:{oder}"), "oder"),
    "unknown parameter in a list": (lambda: locked_task(["order:{order}", "{nobody}"]), "nobody"),
    "field of another notation": (lambda: locked_task("order:%s"), "write {order}"),
    "stray brace": (lambda: locked_task("order:{order"), "brace"),
    "empty key": (lambda: locked_task(""), "empty"),
    "no keys": (lambda: locked_task([]), "at least one key"),
    "key of another kind": (lambda: locked_task(7), "template or a callable"),  # type: ignore[call-overload]
    "key that is none": (lambda: locked_task(["a", None]), "template or a callable"),  # type: ignore[list-item]
    "key of bytes": (lambda: locked_task(b"order"), "template or a callable"),  # type: ignore[arg-type]
    "key that is a class": (lambda: locked_task(key=Limit), "by an object, such as Limit"),  # type: ignore[arg-type]
    "keys that are classes": (lambda: locked_task(["a", Shared]), "by an object, such as Limit"),  # type: ignore[list-item]
    "callable that does not fit": (lambda: locked_task(key=fits_not), "does not fit"),
    "coroutine for a key": (lambda: locked_task(key=key_later), "nobody awaits it"),  # type: ignore[arg-type]
    "ttl of 0": (lambda: locked_task("k", ttl=0), "ttl must be"),
    "negative ttl": (lambda: locked_task("k", ttl=-1.0), "ttl must be"),
    "endless ttl": (lambda: locked_task("k", ttl=math.inf), "ttl must be"),
    "ttl that is no number": (lambda: locked_task("k", ttl=math.nan), "ttl must be"),
    "ttl in words": (lambda: locked_task("k", ttl="30"), "ttl must be .*, got '30'"),  # type: ignore[call-overload]
    "limit of 0": (
        lambda: locked_task(Limit("k", 0)),
        r"n of Limit\(key='k', n=0, cooldown=None\) says how many tasks may hold the key at once: "
        "it is a number from 1 to 1,000,000, or in a task a function of its arguments .*, got 0$",
    ),
    "negative limit": (lambda: locked_task([Limit("k", -1)]), "got -1$"),
    "limit that is true": (lambda: locked_task(Limit("k", True)), "got True$"),
    "half a holder": (lambda: locked_task(Limit("k", 1.5)), "got 1.5$"),  # type: ignore[arg-type]
    "limit in words": (lambda: locked_task(Limit("k", "3")), "got '3'$"),  # type: ignore[arg-type]
    "limit that is none": (lambda: locked_task(Limit("k", None)), "got None$"),  # type: ignore[arg-type]
    "coroutine for a limit": (lambda: locked_task(Limit("k", number_later)), "nobody awaits it"),  # type: ignore[arg-type]
    "cooldown of 0": (
        lambda: locked_task(["a", Limit("k", 2, cooldown=0)]),
        r"cooldown of Limit\(key='k', n=2, cooldown=0\) must be 0.001 s or more, got 0$",
    ),
    "negative cooldown": (lambda: locked_task(Limit("k", 1, -1)), "cooldown of .*, got -1$"),
    "cooldown in words": (
        lambda: locked_task(Limit("k", 1, "1h")),  # type: ignore[arg-type]
        "cooldown of .*, got '1h': write 3600$",
    ),
    "cooldown that is true": (
        lambda: locked_task(Limit("k", 1, True)),
        "cooldown of .*, got True$",
    ),
    "a limit of readers": (
        lambda: locked_task(Limit(Shared("k"), 2)),  # type: ignore[arg-type]
        r"Limit\(key=Shared\(key='k'\), .*: a key is held in one way; write Limit or Shared, with",
    ),
    "readers of a limit": (
        lambda: locked_task([Shared(Limit("k", 2))]),  # type: ignore[arg-type]
        r"Shared\(key=Limit\(.*: a key is held in one way",
    ),
    "a limit of two keys": (
        lambda: locked_task(Limit(["k", "l"], 2)),  # type: ignore[arg-type]
        r"Limit\(key=\['k', 'l'\], .*: .* the list around the entries, as in \[Limit\('a', 3\),",
    ),
    "readers of two keys": (lambda: locked_task(Shared(("k", "l"))), "the list around the entries"),  # type: ignore[arg-type]
    "a limit of another kind": (lambda: locked_task([Limit(7, 3)]), "template or a callable"),  # type: ignore[arg-type]
    "unknown parameter in a limit": (lambda: locked_task([Limit("{oder}", 3)]), "oder"),
    "one key in two ways": (
        lambda: locked_task([Limit("{order}", 3), "{order}"]),
        "'{order}' is given twice: a key has one entry, which says how it is held; keep one",
    ),
    "one key twice": (lambda: locked_task(["{order}", "{order}"]), "'{order}' is given twice"),
    "the newest of two slots": (
        lambda: locked_task(Limit("k", 2), on_contention=Replace(running=True)),
        "one key alone",
    ),
    "the newest reader": (
        lambda: locked_task(Shared("k"), on_contention=Replace(running=True)),
        "one key alone",
    ),
    "the newest of two keys": (
        lambda: locked_task(["k", "l"], on_contention=Replace(running=True)),
        "one key alone",
    ),
    "the newest child": (
        lambda: locked_task(["k", Shared("p")], on_contention=Replace(running=True)),
        "one key alone",
    ),
    "a parent of itself": (lambda: locked_task(["k", Shared("k")]), "'k' is given twice"),
    "a parent twice": (lambda: locked_task(["k", Shared("a"), Shared("a")]), "'a' is given twice"),
    "an empty parent": (lambda: locked_task(["k", Shared("")]), "empty"),
    "unknown parameter in a parent": (lambda: locked_task(["k", Shared("a:{oder}")]), "oder"),
    "parent of another kind": (lambda: locked_task(["k", Shared(7)]), "template or a callable"),  # type: ignore[arg-type]
    "coroutine for a parent": (lambda: locked_task(["k", Shared(key_later)]), "nobody awaits it"),  # type: ignore[arg-type]
    "unknown policy": (lambda: locked_task("k", on_contention="queued"), "did you mean 'queue'"),  # type: ignore[call-overload]
    "no policy": (lambda: locked_task("k", on_contention=7), "decide"),  # type: ignore[call-overload]
    "a policy's class": (lambda: locked_task("k", on_contention=Queue), r"add \(\): Queue\(\)"),  # type: ignore[call-overload]
    "a policy that hears nothing": (
        lambda: locked_task("k", on_contention=Deaf()),  # type: ignore[call-overload]
        r"Deaf.decide\(\) is called with \(contention\), which does not fit: too many positional",
    ),
    "a policy to wait for": (lambda: locked_task("k", on_contention=Later()), "nobody awaits it"),  # type: ignore[call-overload]
    "unknown on_lost": (
        lambda: locked_task("k", on_lost="abrot"),  # type: ignore[call-overload]
        "'flag' or 'abort', got 'abrot'",
    ),
    "no on_lost": (lambda: locked_task("k", on_lost=None), "'flag' or 'abort', got None"),  # type: ignore[call-overload]
    "unknown reserve": (
        lambda: locked_task("k", reserve="retries"),  # type: ignore[call-overload]
        "'retry' or 'chain', got 'retries'",
    ),
    "a reserve that is true": (lambda: locked_task("k", reserve=True), "or 'chain', got True"),  # type: ignore[call-overload]
    "a reader that reserves": (lambda: locked_task(Shared("k"), reserve="retry"), "read lock"),
    "a limit in a chain": (lambda: locked_task(Limit("k", 2), reserve="chain"), "holds alone"),
    "unknown unique": (lambda: locked_task("k", unique="finished"), "'done' or 'start', got 'fin"),  # type: ignore[call-overload]
    "a unique that is true": (lambda: locked_task("k", unique=True), r"Unique\(…\) or Debounce"),  # type: ignore[call-overload]
    "a unique class": (lambda: locked_task("k", unique=Unique), r"Unique\(…\) or Debounce"),  # type: ignore[call-overload]
    "unique by no key": (lambda: locked_task("k", unique=Unique(by=7)), "one template or callable"),  # type: ignore[arg-type]
    "unique by two keys": (
        lambda: locked_task("k", unique=Unique(by=["a", "b"])),  # type: ignore[arg-type]
        "one template or callable",
    ),
    "unique by no parameter": (lambda: locked_task("k", unique=Unique(by="{oder}")), "oder"),
    "debounced by no parameter": (
        lambda: locked_task("k", unique=Debounce(1, 2, by="{oder}")),
        "oder",
    ),
    "debounced at two keys": (
        lambda: locked_task(["k", "l"], unique=Debounce(1, 2)),
        "only if the task locks one key",
    ),
    "debounced by name": (lambda: locked_task(unique=Debounce(1, 2)), "say by= which of them"),
    "keys, not a list": (lambda: locked_task(keys=["a", "b"]), "did you mean (lock_)?key="),  # type: ignore[call-overload]
    "limit misspelt": (lambda: locked_task("k", limti=3), r"mean (lock_)?key=Limit\(.mail., 3\)\?"),  # type: ignore[call-overload]
    "shared misspelt": (lambda: locked_task("k", share=True), r"mean (lock_)?key=Shared\(.catalog"),  # type: ignore[call-overload]
    "cooldown misspelt": (lambda: locked_task("k", cooldwon=9), r"mean (lock_)?key=Limit\(.*=60\)"),  # type: ignore[call-overload]
    "ttl misspelt": (lambda: locked_task("k", tll=30), "did you mean (lock_)?ttl="),  # type: ignore[call-overload]
    "on_contention misspelt": (lambda: locked_task("k", on_contetion="skip"), "on_contention="),  # type: ignore[call-overload]
    "a limit beside the key": (lambda: locked_task("k", limit=3), r"write (lock_)?key=Limit\("),  # type: ignore[call-overload]
    "readers beside the key": (
        lambda: locked_task("k", shared=True),  # type: ignore[call-overload]
        r"write (lock_)?key=Shared\(",
    ),
    "a rate beside the key": (
        lambda: locked_task("k", cooldown=60),  # type: ignore[call-overload]
        r"write (lock_)?key=Limit\(.*60",
    ),
    "a hold's end": (lambda: locked_task("k", max_hold=60), "write Celery's time_limit="),  # type: ignore[call-overload]
    "an outcome of duplicates": (lambda: locked_task("k", on_duplicate="fail"), "is_duplicate"),  # type: ignore[call-overload]
    "celery-once's": (lambda: locked_task("k", once={"keys": ["order"]}), "option of celery-once"),  # type: ignore[call-overload]
    "celery-singleton's": (lambda: locked_task("k", unique_on=["order"]), "of celery-singleton"),  # type: ignore[call-overload]
    "celery-heimdall's": (lambda: locked_task("k", heimdall={}), "option of celery-heimdall"),  # type: ignore[call-overload]
    "redis-py's": (lambda: locked_task("k", timeout=5), "is an option of other locks"),  # type: ignore[call-overload]
    "python-redis-lock's": (lambda: locked_task("k", expire=5), "write (lock_)?ttl="),  # type: ignore[call-overload]
}

#: Of a block, and of what is given to tasks: where it is written.
ELSEWHERE: Misuses = {
    "what a failure does": (lambda: Ordered(on_failure="stop"), '"next" or "hold", got \'stop\''),  # type: ignore[arg-type]
    "an order of none": (lambda: Ordered(max_waiting=0), "max_waiting .*, got 0"),
    "an order in words": (lambda: Ordered(max_wait="1h"), "got '1h': write 3600"),  # type: ignore[arg-type]
    "keep in words": (lambda: Queue(keep="yes"), "keep is True or False, got 'yes'"),  # type: ignore[arg-type]
    "block at no text": (lambda: lock(7), "takes a text"),  # type: ignore[arg-type]
    "block at a callable": (lambda: lock(fits_not), "takes a text"),  # type: ignore[arg-type]
    "block at a template": (lambda: lock("order:{order_id}"), "put an f before the quotes"),
    "block at nothing": (lambda: lock(""), "empty"),
    "block at no keys": (lambda: lock([]), "at least one key"),
    "block at a limit in words": (lambda: lock(Limit("a", "3")), "got '3'"),  # type: ignore[arg-type]
    "block at a limit by function": (lambda: lock(Limit("a", number)), r"is a number in lock\(\)"),
    "block at one key in two ways": (lambda: lock(["a", Shared("a")]), "'a' is given twice"),
    "block with no parent": (lambda: lock(["a", Shared(7)]), "takes a text"),  # type: ignore[arg-type]
    "block with an empty parent": (lambda: lock(["a", Shared("")]), "empty"),
    "block's ttl in words": (lambda: lock("a", ttl="30"), "ttl must be"),  # type: ignore[arg-type]
    "block's negative ttl": (lambda: lock("a", ttl=-1), "ttl must be"),
    "block's timeout in words": (lambda: lock("a", timeout="5"), "timeout must be"),  # type: ignore[arg-type]
    "block's negative timeout": (lambda: lock("a", timeout=-1), "timeout must be"),
    "block without a timeout": (lambda: lock("a", timeout=None), "timeout must be"),  # type: ignore[arg-type]
    "block's ttl misspelt": (lambda: lock("a", tll=30), r"lock\(\): tll= .* did you mean ttl=\?"),  # type: ignore[call-arg]
    "block's timeout misspelt": (lambda: lock("a", time_out=5), "did you mean timeout="),  # type: ignore[call-arg]
    "block's cooldown misspelt": (lambda: lock("a", cooldwon=5), r"did you mean key=Limit\(.*60\)"),  # type: ignore[call-arg]
    "block's unique": (lambda: lock("a", unique="done"), "known: key, app, ttl, timeout"),  # type: ignore[call-arg]
    "block's limit": (lambda: lock("a", limit=3), r"write key=Limit\("),  # type: ignore[call-arg]
    "block's readers": (lambda: lock("a", shared=True), r"write key=Shared\("),  # type: ignore[call-arg]
    "block's rate": (lambda: lock("a", cooldown=60), r"write key=Limit\("),  # type: ignore[call-arg]
    "block's hold": (lambda: lock("a", max_hold=60), "write dlock_max_hold"),  # type: ignore[call-arg]
    "block's loss": (lambda: lock("a", on_lost="raise"), r"write lease.check\(\)"),  # type: ignore[call-arg]
    "block's policy": (lambda: lock("a", on_contention="wait"), "of tasks; write timeout="),  # type: ignore[call-arg]
    "block's wait": (lambda: lock("a", max_wait=5), "write timeout="),  # type: ignore[call-arg]
    "redis-py's wait": (lambda: lock("a", blocking_timeout=5), "write timeout="),  # type: ignore[call-arg]
    "redis-py's question": (lambda: lock("a", blocking=False), "write timeout=0,"),  # type: ignore[call-arg]
    "python-redis-lock's end": (lambda: lock("a", expire=60), "write ttl="),  # type: ignore[call-arg]
    "delay in words": (lambda: Debounce("10", 60), "^delay must be"),  # type: ignore[arg-type]
    "no delay": (lambda: Debounce(0, 60), "^delay must be"),
    "longest delay below the delay": (lambda: Debounce(60, 10), "max_delay=10 .* is shorter"),
    "until when": (lambda: Unique("finished"), "'done' or 'start', got 'finished'"),  # type: ignore[arg-type]
    "a period of 0": (lambda: Unique(period=0), "period must be"),
    "a claim's ttl in words": (lambda: Unique(ttl="1d"), "ttl must be"),  # type: ignore[arg-type]
    "queue for nobody": (lambda: Queue(max_waiting=0), "max_waiting is a number from 1 up"),
    "queue in words": (lambda: Queue(max_waiting="3"), "max_waiting is a number from 1 up"),  # type: ignore[arg-type]
    "queue's overflow": (lambda: Queue(overflow="drop"), "overflow is one of"),  # type: ignore[arg-type]
    "queue's wait in words": (lambda: Queue(max_wait="1h"), "max_wait must be"),  # type: ignore[arg-type]
    "queue's negative wait": (lambda: Queue(max_wait=-1), "max_wait must be"),
    "the newest's wait in words": (lambda: Replace(max_wait="1h"), "max_wait must be"),  # type: ignore[arg-type]
    "the newest of what runs": (lambda: Replace(running="yes"), "running is True or False"),  # type: ignore[arg-type]
    "a backoff in seconds": (lambda: Reschedule(backoff=5), r"such as FullJitter\("),  # type: ignore[arg-type]
    "a backoff's class": (lambda: Reschedule(backoff=FullJitter), r"such as FullJitter\("),  # type: ignore[arg-type]
    "attempts in words": (lambda: Reschedule(max_attempts="3"), "max_attempts is a number"),  # type: ignore[arg-type]
    "negative attempts": (lambda: Reschedule(max_attempts=-1), "max_attempts is a number"),
    "reschedule's wait in words": (lambda: Reschedule(max_wait="1h"), "max_wait must be"),  # type: ignore[arg-type]
    "reschedule's negative wait": (lambda: Reschedule(max_wait=-1), "max_wait must be"),
    "a slot's wait in words": (lambda: Wait(timeout="5"), "timeout must be"),  # type: ignore[arg-type]
    "a slot's endless wait": (lambda: Wait(timeout=math.inf), "timeout must be"),
    "then what": (lambda: Skip(then="perhaps"), 'then= is "stop" or "continue"'),  # type: ignore[arg-type]
    "a base in words": (lambda: FullJitter("1"), "base must be"),  # type: ignore[arg-type]
    "a base of 0": (lambda: FullJitter(0), "base must be"),
    "a base above the cap": (lambda: FullJitter(5, 1), "must not be above cap"),
    "an effect without a name": (lambda: idempotency_key(""), "non-empty str"),
    "an effect by number": (lambda: idempotency_key(7), "non-empty str, got 7"),  # type: ignore[arg-type]
}

#: What Python itself refuses where it is written, naming the class and the parameter.
PYTHONS: dict[str, Callable[[], Any]] = {
    "'n'": lambda: Limit("a"),  # type: ignore[call-arg]
    "'max_hold'": lambda: Limit("a", 3, max_hold=60),  # type: ignore[call-arg]
    "Shared": lambda: Shared("a", 3),  # type: ignore[call-arg]
    "'cooldown'": lambda: Shared("a", cooldown=60),  # type: ignore[call-arg]
    "'max_delay'": lambda: Debounce(10),  # type: ignore[call-arg]
    "'on_duplicate'": lambda: Unique(on_duplicate="newest"),  # type: ignore[call-arg]
    "'limit'": lambda: Queue(limit=3),  # type: ignore[call-arg]
    "'ordered'": lambda: Queue(ordered="publish"),  # type: ignore[call-arg]
}
