"""A broker that takes no message of an app for a while, and a store that takes none to keep."""

# mypy: allow-untyped-calls

from __future__ import annotations

import threading
from typing import Any

import pytest
from kombu.messaging import Producer

from celery_dlock import BackendUnavailable
from celery_dlock.core.state import Claim, WaitMode
from celery_dlock.stores.base import LockBackend


class Trouble:
    """While ``error`` is set every publish raises it; *tries* publishes later it is over.

    So many ``failed`` of those that the test makes; a thread that it has not started may publish.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.tries = -1
        self.failed = 0
        #: Whether the store answers to who asks for a key, and to who leaves a message.
        self.answers = self.keeps = True
        self._patch = patch
        publish, mine = Producer.publish, threading.get_ident()

        def trouble(producer: Producer, *args: Any, **options: Any) -> Any:
            if self.error is not None and self.tries != 0:
                self.tries -= 1
                self.failed += threading.get_ident() == mine
                raise self.error
            return publish(producer, *args, **options)

        patch.setattr(Producer, "publish", trouble)

    def beset(self, store: LockBackend) -> None:
        """The *store* keeps messages, or not, as this says."""
        enter = store.enter

        def ask(claim: Claim, message: bytes | None = None) -> Any:
            if not (self.keeps if claim.wait is WaitMode.ENQUEUE else self.answers):
                raise BackendUnavailable("no answer")
            return enter(claim, message)

        self._patch.setattr(store, "enter", ask)

    def over(self) -> None:
        self.error, self.answers, self.keeps = None, True, True
