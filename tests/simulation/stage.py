"""What a worker is put through, the stand-in and a real one alike, and what is seen of it.

A scenario calls tasks, strikes, and waits for what it has to come to; nothing in it is left to
chance. What is seen is each message's way through Celery, its bodies, its result, and what is left
at the broker. The same hooks note it on both sides.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from itertools import count, product
from typing import Any

from celery import Celery, signals
from celery.exceptions import Reject
from celery.states import READY_STATES
from celery.worker.request import Request
from kombu.message import Message

from celery_dlock import LockedTask, Queue
from celery_dlock.policies import Contention, RunLater

Note = Callable[..., object]


class Soon:
    """A policy that comes back once, long after whoever held the key has gone."""

    def decide(self, contention: Contention) -> RunLater:
        return RunLater(2.0)


#: The tasks of scenarios; those with a lock have the product's, all others Celery's class.
TASKS: Mapping[str, Mapping[str, Any]] = {
    "early": {"acks_late": False},
    "late": {"acks_late": True, "reject_on_worker_lost": True},
    "careless": {"acks_late": True, "reject_on_worker_lost": False},
    "softly": {"acks_late": True, "soft_time_limit": 1},
    "hardly": {"acks_late": True, "time_limit": 1},
    "queued": {"acks_late": True, "lock_on_contention": Queue()},
    "back": {"acks_late": True, "lock_on_contention": Soon()},
}


def register(app: Celery, note: Note, hold: Callable[[str], object]) -> None:
    """Define :data:`TASKS` on *app*. A body notes what it does; *hold* waits for the scenario."""

    def body(self: Any, key: str, holds: bool, ending: str) -> str:
        request = self.request
        redelivered = bool(request.delivery_info["redelivered"])
        about = {"id": request.id, "delivery": request.get("delivery"), "key": key}
        note("began", **about, attempt=request.retries, redelivered=redelivered)
        if holds:
            hold(request.id)
        note("ended", **about)
        if ending == "retries" and not request.retries:
            raise self.retry(countdown=0.2)
        if ending == "requeues" and not redelivered:
            raise Reject(requeue=True)
        if ending == "rejects":
            raise Reject
        if ending == "fails":
            raise LookupError(key)
        return "ran"

    for name, options in TASKS.items():
        lock = {"base": LockedTask, "lock_key": "{key}", "lock_ttl": 6.0}
        locked = lock if "lock_on_contention" in options else {}
        app.task(name=f"stage.{name}", bind=True, shared=False, **locked, **options)(body)


def watch(note: Note) -> None:
    """From now on, tell what Celery does in this process with each message that it is delivered."""
    numbers = (f"{os.getpid()}.{number}" for number in count())

    def noted(message: Message, what: str, **more: Any) -> None:
        delivery = vars(message).setdefault("delivery", next(numbers))
        channel = vars(message.channel).setdefault("number", next(numbers))
        note(what, id=message.headers["id"], delivery=delivery, channel=channel, **more)

    def received(request: Any, **_: Any) -> None:
        eta = request.eta is not None
        redelivered = bool(request.delivery_info["redelivered"])
        noted(request.message, "received", redelivered=redelivered, eta=eta)
        request.request_dict["delivery"] = request.message.delivery

    def settles(name: str) -> None:
        whole = getattr(Message, name)

        @wraps(whole)
        def settle(message: Message, *args: Any, **kwargs: Any) -> None:
            noted(message, f"{name} {kwargs['requeue']}" if "requeue" in kwargs else name)
            try:
                whole(message, *args, **kwargs)
            except Exception:
                noted(message, "in vain")
                raise

        setattr(Message, name, settle)

    whole_accepted = Request.on_accepted

    @wraps(whole_accepted)
    def accepted(request: Request, *args: Any) -> None:
        whole_accepted(request, *args)
        note("accepted", id=request.id, delivery=request.request_dict["delivery"])

    signals.task_received.connect(received, weak=False)
    Request.on_accepted = accepted
    settles("ack")
    settles("reject")


class Stage(ABC):
    """Where a scenario is played: one worker, and its broker."""

    app: Celery

    @abstractmethod
    def notes(self) -> Sequence[Mapping[str, Any]]:
        """What was noted so far, each with its ``what`` and the ``pid`` of who noted it."""

    @abstractmethod
    def wait(self, what: str, condition: Callable[[], bool]) -> None: ...

    @abstractmethod
    def go(self, *names: str) -> None:
        """Let the bodies of these tasks go on."""

    @abstractmethod
    def start(self) -> None:
        """Have one more worker, with the same settings."""

    @abstractmethod
    def kill_body(self, name: str) -> None:
        """Kill the child that runs it."""

    @abstractmethod
    def kill(self, number: int = 0) -> None:
        """Kill the main process of that worker; its children go with it."""

    @abstractmethod
    def disconnect(self) -> None: ...

    @abstractmethod
    def revoke(self, name: str, *, terminate: bool = False) -> None:
        """Return when the worker knows."""

    @abstractmethod
    def stop(self) -> None:
        """Ask for a warm shutdown, and return as it has begun."""

    @abstractmethod
    def stop_cold(self) -> None:
        """Ask for a cold shutdown, which a soft one may come before."""

    @abstractmethod
    def gone(self) -> None:
        """Return when the worker has ended."""

    @abstractmethod
    def left(self) -> list[list[Any]]:
        """The tasks whose messages lie at the broker, in their order, and whether redelivered."""

    def call(
        self,
        task: str,
        *names: str,
        holds: bool = False,
        ending: str = "",
        key: str = "",
        **how: Any,
    ) -> None:
        """Publish a message each, of tasks with these names as their ids."""
        for name in names:
            args = (key or name, holds, ending)
            self.app.signature(f"stage.{task}").apply_async(args, task_id=name, **how)

    def until(self, what: str, *names: str, times: int = 1) -> None:
        """Return when that was noted of each of these so often.

        A body has begun when the main process knows it, too: it cancels nothing else.
        """
        noted = (what, "accepted") if what == "began" else (what,)
        for each, name in product(noted, names):
            self.wait(f"{name}: {each}, {times}", partial(self._told, each, name, times))

    def _told(self, what: str, name: str, times: int) -> bool:
        found = [each for each in self.notes() if (each["what"], each["id"]) == (what, name)]
        return len(found) >= times

    def ends(self, *names: str) -> None:
        """Return when these have results."""
        for name in names:
            self.wait(f"{name} ends", partial(self._has_ended, name))

    def settles(self) -> None:
        """Return when each message is acknowledged or rejected whose body has ended.

        Celery may shut down before it has read what a child says of its end.
        """
        self.wait("all is settled", self._is_settled)

    def _is_settled(self) -> bool:
        told: dict[str, set[str]] = defaultdict(set)
        for each in self.notes():
            told[each["delivery"]].add(each["what"].split()[0])
        return all(whats & {"ack", "reject"} for whats in told.values() if "ended" in whats)

    def _has_ended(self, name: str) -> bool:
        return self._meta(name)["status"] in READY_STATES

    def _meta(self, name: str) -> Any:
        return self.app.backend.get_task_meta(name, cache=False)

    def _result(self, name: str) -> list[str]:
        meta = self._meta(name)
        result = meta["result"]
        told = type(result).__name__ if isinstance(result, Exception) else str(result)
        return [meta["status"], told]

    def what_was_seen(self) -> Mapping[str, Any]:
        """All that is the same wherever the same is played, ready for JSON."""
        ways: dict[str, dict[str, list[str]]] = {}
        bodies: dict[str, list[Any]] = {}
        names, lie, most = set(), Counter[str](), dict[str, int]()
        for each in self.notes():
            what, name = each["what"], each["id"]
            names.add(name)
            if what == "accepted":  # before or after what the body does, as it happens
                continue
            if what == "began":
                run = [name, each["attempt"], each["redelivered"]]
                bodies.setdefault(each["key"], []).append(run)
                continue
            way = ways.setdefault(name, {}).setdefault(each["delivery"], [])
            if "channel" in each:
                channel = each["channel"]
                lie[channel] += {"received": 1, "in vain": 0}.get(what, -1)
                most[channel] = max(lie[channel], most.get(channel, 0))
            told = [text for text in ("redelivered", "eta") if each.get(text)]
            way.append(" ".join([what, *told]))
        return {
            "messages": {name: list(of.values()) for name, of in sorted(ways.items())},
            "bodies": dict(sorted(bodies.items())),
            "most at once over each channel": list(most.values()),
            "results": {name: self._result(name) for name in sorted(names)},
            "left": self.left(),
        }
