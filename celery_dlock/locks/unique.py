"""Which calls are alike, and the unique claims in the store.

They are changed where a task is published, and by the worker that has it. Each change is a
compare-and-set of one small value (:meth:`LockBackend.swap`), repeated with the current value if
another process was faster. That ends, because each lost attempt is another one's success. A caller
that knows the current value needs one round trip; what changes nothing is asked, and not written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from inspect import Parameter, Signature
from typing import Any, Self, TypeVar

from celery_dlock.core.canonical import canonical, exact
from celery_dlock.core.checks import quoted
from celery_dlock.core.debounce import DEBOUNCED, Debounce
from celery_dlock.core.keys import Key, KeyTemplate
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import task_id_of
from celery_dlock.core.unique import (
    Called,
    Lives,
    Unique,
    UniqueClaim,
    begun,
    called,
    doubted,
    ended,
    met,
)
from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import LockBackend
from celery_dlock.stores.stored import sound
from celery_dlock.stores.unreadable import NONSENSE, UnreadableKey

T = TypeVar("T")

#: What stands under a name, in the store and read; nothing is ``None``.
Stored = tuple[bytes | None, UniqueClaim | None]
NOTHING: Stored = (None, None)

Rule = Callable[[UniqueClaim | None, Lives], tuple[UniqueClaim | None, T]]


@dataclass(frozen=True, slots=True)
class Uniqueness:
    """How the calls of a unique task are told apart: *by* that, or else by what the task *locks*
    and by its arguments.
    """

    task: str
    options: Unique
    locks: KeyTemplate
    by: KeyTemplate | None

    @classmethod
    def of(cls, task: str, options: Unique, locks: KeyTemplate) -> Self:
        """Of a *task* that *locks* keys.

        Raises :exc:`~celery_dlock.ConfigurationError` for what cannot be meant.
        """
        by = None if options.by is None else _compiled(task, options.by, locks.signature)
        return cls(task, options, locks, by)

    def name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The name of the claim of a call.

        Raises :exc:`TypeError` when the task cannot be called like that, and
        :exc:`~celery_dlock.ConfigurationError` when an argument has no canonical text, or the
        callable that makes its key raises.
        """
        if self.by is not None:
            return named_by(self.task, self.by, args, kwargs)
        signature = self.locks.signature
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as exc:
            raise TypeError(f"{self.task}() {exc}") from None
        parameters = signature.parameters
        try:
            # Without what has its default, so that a version with one parameter more knows it, too.
            texts = [
                f"{name}={exact(value)}"
                for name, value in given.items()
                if not _is_default(parameters[name], value)
            ]
        except (TypeError, ValueError, OverflowError) as exc:
            raise ConfigurationError(
                f"task {self.task} is unique, and of its arguments {exc}: say by= which of them "
                "make two calls the same, as in Unique(by='{order_id}')"
            ) from exc
        if not self.locks.reads_arguments_only:  # what differs in its lock is not the same, either
            texts += self._keys(args, kwargs)
        # Arguments may be secret, and names are shown.
        digest = f"~{sha256(','.join(texts).encode()).hexdigest()[:32]}" if texts else ""
        return canonical(f"{self.task}({digest})")

    def _keys(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        try:
            return self.locks.keys(args, kwargs)
        except ConfigurationError:
            raise
        except Exception as exc:  # whatever a callable of the project's raises
            raise ConfigurationError(
                f"task {self.task} is unique, and its key cannot be made where it is called "
                f"({exc!r}): say by= what makes two calls the same, as in Unique(by='{{order_id}}')"
            ) from exc


@dataclass(frozen=True, slots=True)
class Debouncing:
    """How calls of a *task* are debounced."""

    task: str
    options: Debounce
    by: KeyTemplate

    @classmethod
    def of(cls, task: str, options: Debounce, locks: KeyTemplate) -> Self:
        """Of a *task* that *locks* keys.

        Raises :exc:`~celery_dlock.ConfigurationError` where that is its name alone, or there are
        several keys: a message waits at one.
        """
        if len(locks.parts) > 1:
            raise ConfigurationError("calls can be debounced only if the task locks one key")
        if options.by is not None:
            return cls(task, options, _compiled(task, options.by, locks.signature))
        if locks.names == (task,):
            raise ConfigurationError(
                "all calls lock the task's name: say by= which of them the newest one is to "
                "replace, as in by='{order_id}', or give the task a key"
            )
        return cls(task, options, locks)

    def key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """At which key of the store a call waits. Raises as :meth:`KeyTemplate.keys` does."""
        return DEBOUNCED + named_by(self.task, self.by, args, kwargs)


def _compiled(task: str, by: Key, signature: Signature) -> KeyTemplate:
    """One template: keys of a lock have no order, so a list of them would not tell calls apart."""
    if not isinstance(by, str | Callable):
        raise ConfigurationError(
            f"by= of a unique task is one template or callable, such as '{{shop}}:{{day}}', "
            f"got {quoted(by)}"
        )
    return KeyTemplate.compile(by, signature, default=task)


def named_by(task: str, by: KeyTemplate, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What calls of *task* are called for which *by* is the same."""
    return canonical(f"{task}({by.keys(args, kwargs)[0]})")


@dataclass(frozen=True, slots=True)
class Met:
    """The answer to a worker that has the message of a task: the id of ``another`` that lives, and
    whether the message was published ``again``.
    """

    another: str | None
    again: bool


class UniqueClaims:
    """The unique claims of one store. Whatever is asked raises
    :exc:`~celery_dlock.BackendUnavailable`.
    """

    def __init__(self, store: LockBackend, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def call(self, name: str, claim: UniqueClaim, ttl: float) -> tuple[bytes | None, Called]:
        """The task of *claim* is called: the stored value, whether to publish it, under which id.

        One round trip for a duplicate of what the broker has, which writes nothing.
        """

        def rule(stored: UniqueClaim | None, lives: Lives) -> tuple[UniqueClaim, Called]:
            outcome = called(stored, claim, self._clock(), lives)
            return outcome.claim, outcome

        return self._change(name, claim.task_id, rule, ttl, None)

    def other(self, name: str, task_id: str) -> str | None:
        """The id of another task that lives; nothing is changed."""
        text = self._store.swap(name, None, None, 0)
        stored = None if text is None else _decoded(name, text)
        if stored is None or stored.task_id == task_id:
            return None
        return stored.task_id if stored.over or self._shows(stored) else None

    def meet(
        self, name: str, claim: UniqueClaim, ttl: float, expected: bytes | None
    ) -> tuple[bytes | None, Met]:
        """A worker has the message of *claim*: the stored value, and the answer to the worker."""

        def rule(stored: UniqueClaim | None, lives: Lives) -> tuple[UniqueClaim, Met]:
            becomes, other = met(stored, claim, lives)
            return becomes, Met(other, becomes.again)

        return self._change(name, claim.task_id, rule, ttl, expected)

    def begin(self, name: str, task_id: str, ttl: float, expected: bytes | None) -> Met:
        """The body begins, and the task is unique until then."""

        def rule(stored: UniqueClaim | None, lives: Lives) -> tuple[UniqueClaim | None, Met]:
            becomes, other = begun(stored, task_id, self._clock(), lives)
            return becomes, Met(other, stored is not None and stored.again)

        _, answer = self._change(name, task_id, rule, ttl, expected)
        return answer

    def doubt(self, name: str, claim: UniqueClaim, ttl: float) -> None:
        """Note that it is not known whether the message of *claim* was published."""

        def rule(stored: UniqueClaim | None, _: Lives) -> tuple[UniqueClaim | None, None]:
            return doubted(stored, claim), None

        self._change(name, claim.task_id, rule, ttl, claim.encode())

    def end(
        self, name: str, task_id: str, ttl: float, expected: bytes | None, attempt: str = ""
    ) -> None:
        """The task has ended, or that *attempt* of it. What another one has is not touched."""

        def rule(stored: UniqueClaim | None, _: Lives) -> tuple[UniqueClaim | None, None]:
            return ended(stored, task_id, self._clock(), attempt), None

        self._change(name, task_id, rule, ttl, expected)

    def forget(self, name: str, task_id: str) -> bool:
        """Delete the claim of that task, also if its period is not over; whether it had one."""

        def rule(stored: UniqueClaim | None, _: Lives) -> tuple[UniqueClaim | None, bool]:
            is_its_own = stored is not None and stored.task_id == task_id
            return None if is_its_own else stored, is_its_own

        return self._change(name, task_id, rule, SECOND, None)[1]

    def _change(
        self, name: str, task_id: str, rule: Rule[T], ttl: float, expected: bytes | None
    ) -> tuple[bytes | None, T]:
        """Store what *rule* makes of the current claim; what is stored, and the rule's answer.

        What is *expected* to be stored is only tried; a current claim that stays as it is is not
        written again.
        """
        (text, stored), is_current = _readable(expected), False
        while True:
            others = stored if stored is not None and stored.task_id != task_id else None
            becomes, answer = rule(stored, partial(self._shows, others))
            if is_current and becomes == stored:
                return text, answer
            lasts = 0.0 if becomes is None else becomes.lasts(ttl, self._clock())
            value = None if becomes is None else becomes.encode()
            current = self._store.swap(name, text, value, round(lasts * SECOND))
            if current == value:
                return value, answer
            text, stored = current, None if current is None else _decoded(name, current)
            is_current = True

    def _shows(self, claim: UniqueClaim | None) -> bool:
        """Whether the lock store shows that the task of *claim* runs, waits or was woken."""
        if claim is None or not claim.key:
            return False
        (state,) = self._store.look([claim.key])
        waiting = [turn.task for turn in state.grants] + [entry.task for entry in state.waiting]
        if any(task_id_of(task) == claim.task_id for task in waiting):
            return True
        ends = [h.expires for h in state.holders if task_id_of(h.task) == claim.task_id]
        # One that has expired may be told of until somebody comes to its key.
        if ends and max(ends) > self._store.now():
            return True
        return self._store.message(claim.key, claim.task) is not None


def _is_default(parameter: Parameter, value: object) -> bool:
    default = parameter.default
    if value is default or default is Parameter.empty:
        return value is default
    with suppress(TypeError, ValueError, OverflowError):  # it has no text, so it is no default
        return exact(value) == exact(default)
    return False


def _decoded(name: str, text: bytes) -> UniqueClaim:
    try:
        return sound(UniqueClaim.decode(text))
    except NONSENSE as exc:
        raise UnreadableKey(f"the unique claim {name!r} cannot be read: {exc!r}") from exc


def _readable(text: bytes | None) -> Stored:
    """*text*, read; nothing if it cannot have been read from the store: it comes with a message."""
    try:
        return NOTHING if text is None else (text, _decoded("", text))
    except UnreadableKey:
        return NOTHING
