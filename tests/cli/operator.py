"""Somebody at the commands, and locks for them to look at, without a worker."""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner, Result
from kombu.transport import memory

from celery_dlock.cli import actions
from celery_dlock.cli.main import dlock
from celery_dlock.core.events import Event, Woken
from celery_dlock.core.lease import SECOND
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Claim, Drop, Mode, Outcome, Park, Reason, Run, WaitMode
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.runtime import forget, runtime

#: Every command that looks into the store, but for ``beat`` and ``doctor``.
COMMANDS = [
    ["ls"],
    ["show", "order:42"],
    ["release", "order:42", "--yes"],
    ["hold", "order:42", "--for", "1h", "--because", "a test", "--yes"],
    ["hold", "order:42", "--end", "--yes"],
    ["cancel", "id", "--yes"],
    ["dead"],
    ["dead", "id", "--replay", "--yes"],
    ["dead", "id", "--discard", "--yes"],
    ["metrics"],
    ["ls", "--watch"],
]


class Operator:
    """Runs commands on one app, whose broker is in memory."""

    def __init__(self, **config: Any) -> None:
        self.events: list[Event] = []
        self.app = Celery("shop", set_as_current=False)
        self.app.conf.update(broker_url="memory://", dlock_sinks=[self.events.append], **config)

    @property
    def backend(self) -> Any:
        return runtime(self.app).backend

    def run(self, *arguments: str) -> Result:
        """What a command prints and how it ends, for somebody without a terminal."""
        return CliRunner().invoke(dlock, arguments, obj=SimpleNamespace(app=self.app))

    def read(self, *arguments: str, code: int = 0) -> Any:
        """What a command says to a program."""
        result = self.run(*arguments, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def hold(self, key: str, task: str = "holder", **options: Any) -> Claim:
        """Have *task* hold *key*, for a minute."""
        claim = self.claim(key, task, **options)
        assert isinstance(self.backend.enter(claim).verdict, Run)
        return claim

    def park(self, key: str, *tasks: str) -> None:
        """Have the messages of *tasks* wait for *key*, in this order."""
        for task in tasks:
            claim = self.claim(key, task, wait=WaitMode.QUEUE)
            assert isinstance(self.backend.enter(claim, self.message(task)).verdict, Park)

    def dead_letter(self, key: str, task: str, message: bytes | None = None) -> None:
        """Have the message of *task* be dead: its runs were lost."""
        for _ in range(MAX_LOST_RUNS):
            self.backend.leave(self.hold(key, task), Outcome.ABANDONED)
        claim = self.claim(key, task, wait=WaitMode.QUEUE)
        verdict = self.backend.enter(claim, message or self.message(task)).verdict
        assert verdict == Drop(Reason.DEAD)

    def message(self, task: str, **fields: Any) -> bytes:
        """As it would wait in the store."""
        return self.entry(task, **fields).encode({})

    def entry(self, task: str, **fields: Any) -> ParkedMessage:
        given = {
            "broker": runtime(self.app).wake.broker,
            "key": "",
            "task": f"{task}:0:0",
            "exchange": "",
            "routing_key": "celery",
            "content_type": "application/json",
            "content_encoding": "utf-8",
            "headers": {"id": task, "task": "charge", "lang": "py"},
            "properties": {},
            "body": b'[[42], {"note": "secret"}, {}]',
        }
        return ParkedMessage(**{**given, **fields})

    def woken(self) -> list[tuple[str, str | None]]:
        """Which tasks were called by hand, and to which end."""
        return [(e.subject.task_id, e.ending) for e in self.events if isinstance(e, Woken)]

    def holders(self, key: str) -> list[str]:
        (state,) = self.backend.look([key])
        return [holder.task.split(":")[0] for holder in state.holders]

    def claim(self, key: str, task: str, **options: Any) -> Claim:
        if "limit" in options:
            options.setdefault("mode", Mode.LIMITED)
        nonce = uuid.uuid4().hex
        return Claim(key, f"{task}:0:0", nonce, **{"ttl": 60 * SECOND, **options})


@contextmanager
def operator(**config: Any) -> Iterator[Operator]:
    """One whose connections are given back, and whose broker is wiped, afterwards."""
    made = Operator(**config)
    try:
        yield made
    finally:
        forget(made.app)
        made.app.close()
        memory.Channel.queues.clear()
        memory.Transport.global_state.clear()


def answers(monkeypatch: pytest.MonkeyPatch, answer: bool, meanwhile: Any = None) -> list[str]:
    """Somebody sits at a terminal and gives this *answer*, after something happened *meanwhile*.

    What was asked is returned.
    """
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        if meanwhile:
            meanwhile()
        return answer

    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(actions, "sys", terminal)
    monkeypatch.setattr(click, "confirm", confirm)
    return asked
