"""What a task declares about its lock, checked when it is defined and never when it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypedDict, Unpack, get_args

from celery.exceptions import MaxRetriesExceededError, SoftTimeLimitExceeded, TaskPredicate
from celery.utils.functional import head_from_fun

from celery_dlock.core.access import (
    Access,
    Keys,
    LimitFunction,
    LimitUnknown,
    Wanted,
    checked_limit,
    entries,
    own_places,
)
from celery_dlock.core.checks import optional_duration
from celery_dlock.core.debounce import Debounce
from celery_dlock.core.keys import KeyTemplate, check_callable, label_of, signature_of
from celery_dlock.core.lease import Lease
from celery_dlock.core.state import Mode
from celery_dlock.core.unique import Unique, Until
from celery_dlock.errors import ConfigurationError
from celery_dlock.locks.foreign import HELD, WORDS, refuse_foreign
from celery_dlock.locks.injected import NAMES
from celery_dlock.locks.unique import Debouncing, Uniqueness
from celery_dlock.policies.base import Policy, queueing, replaces_running
from celery_dlock.policies.shipped import PolicyName, Queue, policy_named

#: Makes dicts of the models among the arguments of a call, for a task with ``pydantic=True``. It is
#: Celery's, since Celery 5.7.
Dump = Callable[[Sequence[Any], Mapping[str, Any]], tuple[Sequence[Any], Mapping[str, Any]]]

#: What a function for a limit may raise to end its task itself, as a body does.
_ENDS = (TaskPredicate, MaxRetriesExceededError, SoftTimeLimitExceeded)

#: What happens to a body whose lease is lost.
OnLost = Literal["flag", "abort"]

#: What a task's keys are kept for when it has ended: its own next attempt; or that, and the next
#: step of its chain.
Reserve = Literal["retry", "chain"]


class LockOptions(TypedDict, total=False):
    """Options of a task's lock, beside its key.

    An option is named here and in its rule, which :meth:`Definition.of` applies and which has the
    default. The types of ``@locked_task``, the attributes of ``LockedTask`` and the checks of
    misspelt names are derived from it (``docs/decisions/0076-an-option-is-named-once.rst``).
    """

    ttl: float | None
    on_contention: PolicyName | Policy
    on_lost: OnLost
    reserve: Reserve | None
    unique: Until | Unique | Debounce | None


#: The names of all options, the key among them.
OPTIONS = ("key", *LockOptions.__annotations__)

#: What a policy's ``decide`` is called with.
_CONTENTION = inspect.Signature(
    [inspect.Parameter("contention", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
)

#: How similar a name is to an option that counts as misspelt; for a name of three letters, where
#: one wrong letter is a third. A "title" or a "parent_id" is the project's own.
SIMILAR, SIMILAR_IF_SHORT = 0.8, 0.65


@dataclass(frozen=True, slots=True)
class Definition:
    """A task's lock options, checked. A ``ttl`` of ``None`` is that of the settings.

    ``label`` is the text of the ``template`` of its own keys, for people and for metrics;
    ``access`` is how each key is held; it ``asks_limits`` where a function says how many may hold
    one. ``injects`` names the parameters that the library passes to
    the body. ``dump`` makes the arguments of a message from those of a call, if Celery does more
    than serialize them.
    """

    label: str
    template: KeyTemplate
    access: tuple[Access, ...]
    asks_limits: bool
    signature: inspect.Signature
    injects: frozenset[str]
    ttl: float | None
    policy: Policy
    aborts: bool
    reserve: Reserve | None
    unique: Uniqueness | None
    debounce: Debouncing | None
    dump: Dump | None

    @classmethod
    def of(
        cls,
        run: Callable[..., Any],
        *,
        bound: bool,
        name: str,
        key: Wanted | Sequence[Wanted] | None = None,
        dump: Dump | None = None,
        **options: Unpack[LockOptions],
    ) -> Definition:
        """Check the options of a task whose body is *run*; *bound* if its first parameter is self.

        Raises :exc:`~celery_dlock.ConfigurationError` that says what is wrong and where.
        """
        try:
            signature, injects = _split(signature_of(run), bound=bound)
            template, access = _template(key, signature, name)
            if "fencing_token" in injects:
                _check_one_token(access)
            own = template.only(own_places(access))
            uniqueness, debounce = _uniqueness(options.get("unique"), name, own)
            policy = _policy(options.get("on_contention", "reschedule"), access)
            if debounce is not None and queueing(policy) is None:
                policy = Queue()  # a debounced call waits there, whatever the policy
            return cls(
                label=",".join(own.names),
                template=template,
                access=access,
                asks_limits=any(one.function for one in access),
                signature=signature,
                injects=injects,
                ttl=optional_duration("ttl", options.get("ttl")),
                policy=policy,
                aborts=_aborts(options.get("on_lost", "flag")),
                reserve=_reserve(options.get("reserve"), access, policy),
                unique=uniqueness,
                debounce=debounce,
                dump=dump,
            )
        except ConfigurationError as exc:
            raise ConfigurationError(f"task {name}: {exc}") from exc

    def keys(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Keys:
        """The keys of a call. Raises as :meth:`KeyTemplate.rendered` and :meth:`Keys.of` do."""
        if self.dump is not None:
            args, kwargs = self.dump(args, kwargs)
        keys = zip(self.template.rendered(args, kwargs), self.access, strict=True)
        return Keys.of(tuple(keys))

    def limited(self, keys: Keys, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Keys:
        """*keys* of a call with the limits that functions say of it now.

        Raises :exc:`LimitUnknown`, and what a function raises to end the task.
        """
        if not self.asks_limits:
            return keys
        call = self.template.call(*self.sent(args, kwargs))

        def ask(key: str, function: LimitFunction) -> int:
            source = f"task {self.template.name}: what {label_of(function)}() says for {key!r}"
            try:
                limit = function(*call.args, **call.kwargs)
            except _ENDS:
                raise
            except Exception as exc:
                error = f"{source} is not known: it raised {type(exc).__name__}: {exc}"
                raise LimitUnknown(error) from exc
            try:
                return checked_limit(limit, source)
            except ConfigurationError as exc:
                raise LimitUnknown(str(exc)) from None

        return keys.limited(ask)

    def sent(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments as the message has them: with ``pydantic=True``, dicts for the models."""
        return (args, kwargs) if self.dump is None else self.dump(args, kwargs)

    def argument_checker(self, name: str) -> Callable[..., Any]:
        """The function with which Celery checks the arguments of a call.

        Python's errors about them name the task, by *name*.
        """

        def parameters() -> None: ...

        parameters.__signature__ = self.signature  # type: ignore[attr-defined]
        checker: Callable[..., Any] = head_from_fun(parameters)
        checker.__qualname__ = name
        return checker

    def injected(self, kwargs: Mapping[str, Any], lease: Lease) -> dict[str, Any]:
        """A copy of *kwargs* with what the library passes; retry() sends *kwargs* itself."""
        values: dict[str, Any] = {}
        if "lease" in self.injects:
            values["lease"] = lease
        if "fencing_token" in self.injects:
            values["fencing_token"] = lease.fencing_token
        return {**kwargs, **values}

    def refuse_injected(self, name: str, kwargs: Mapping[str, Any]) -> None:
        """Raise :exc:`TypeError` if a caller passes a parameter that only the library may."""
        names = self.injects.intersection(kwargs)  # which may be no dict: Celery refuses that
        if names:
            raise TypeError(
                f"{name}: {', '.join(sorted(names))} is handed to the body by celery_dlock "
                "when the lock is taken; callers must not pass it"
            )


class TaskWithLock(Protocol):
    """A task as the code that publishes, runs and ends it sees it.

    Celery carries no annotations, so its attributes have no types.
    """

    name: str
    app: Any
    backend: Any
    request: Any
    request_stack: Any
    acks_late: Any
    ignore_result: Any
    store_errors_even_if_ignored: Any
    time_limit: Any
    track_started: Any

    @property
    def lock_definition(self) -> Definition: ...

    def on_lock_lost(
        self, lease: Lease, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None: ...

    def signature_from_request(self, *args: Any, **options: Any) -> Any: ...


def refuse_misspelt(task: str, names: Iterable[str]) -> None:
    """Raise :exc:`ConfigurationError` if one of *names* is nearly an option of a lock, or one of
    another library's.

    Celery takes any name for one of the project's own: the lock would silently have its default.
    """
    for name in names:
        refuse_foreign(f"task {task}", [name])
        if meant := nearest_option(name, OPTIONS):
            raise ConfigurationError(
                f"task {task}: {name}= is no option; did you mean {meant}? (A name "
                "of the project's own has to be an attribute of its task class.)"
            )


def nearest_option(name: str, options: Collection[str], prefix: str = "") -> str | None:
    """How to write what *name*, which is none of the *options*, nearly is."""
    cutoff = SIMILAR if len(name) > 3 else SIMILAR_IF_SHORT
    matches = get_close_matches(name, (*options, *WORDS), n=1, cutoff=cutoff)
    if not matches or name in options:
        return None
    return HELD.get(matches[0], f"{{p}}{matches[0]}=").format(p=prefix)


def _split(
    signature: inspect.Signature, *, bound: bool
) -> tuple[inspect.Signature, frozenset[str]]:
    """Take self and the injected parameters out of *signature*."""
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.name in NAMES and parameter.kind is not parameter.KEYWORD_ONLY:
            raise ConfigurationError(
                f"{parameter.name} must be keyword-only: put it after a * in the parameter list"
            )
    injects = frozenset(p.name for p in parameters) & NAMES
    parameters = [p for p in parameters if p.name not in injects]
    return signature.replace(parameters=parameters), injects


def _template(
    key: Wanted | Sequence[Wanted] | None, signature: inspect.Signature, name: str
) -> tuple[KeyTemplate, tuple[Access, ...]]:
    """The template of all keys, and how each of them is held; without a *key*, of the *name*."""
    if key is None:
        return KeyTemplate.compile(None, signature, default=name), (Access(entry=1),)
    keys = entries(key)
    template = KeyTemplate.compile([entry for entry, _ in keys], signature, default=name)
    access = tuple(replace(access, entry=n) for n, (_, access) in enumerate(keys, 1))
    for function in [one.function for one in access if one.function is not None]:
        check_callable(f"limit {label_of(function)}()", function, signature)
    for part in template.parts:
        if template.parts.count(part) > 1:
            raise ConfigurationError(
                f"{part.label!r} is given twice: a key has one entry, which says how it is held; "
                "keep one of them"
            )
    return template, access


def _policy(on_contention: str | Policy, access: Sequence[Access]) -> Policy:
    policy = policy_named(on_contention)
    check_callable(f"{type(policy).__name__}.decide()", policy.decide, _CONTENTION, called=" with")
    is_alone = len(access) == 1 and access[0].mode is Mode.EXCLUSIVE
    if replaces_running(policy) and not is_alone:
        raise ConfigurationError(
            "Replace(running=True) needs a task with one key alone: Limit, Shared and several keys "
            "do not go with it"
        )
    return policy


def _aborts(on_lost: OnLost) -> bool:
    if on_lost not in get_args(OnLost):
        raise ConfigurationError(f"on_lost must be 'flag' or 'abort', got {on_lost!r}")
    return on_lost == "abort"


def _reserve(reserve: Reserve | None, access: Sequence[Access], policy: Policy) -> Reserve | None:
    demands = queueing(policy)
    is_ordered = demands is not None and demands.ordered
    if is_ordered and all(one.mode is Mode.SHARED for one in access):
        raise ConfigurationError(
            "on_contention='ordered' needs a key that is not Shared: readers run in any order"
        )
    if reserve is None:
        return "retry" if is_ordered else None
    if reserve not in get_args(Reserve):
        raise ConfigurationError(f"reserve must be 'retry' or 'chain', got {reserve!r}")
    if reserve == "chain" and not any(one.mode is Mode.EXCLUSIVE for one in access):
        raise ConfigurationError(
            "reserve='chain' needs a key that one task holds alone: not in Limit, not in Shared"
        )
    if all(one.mode is Mode.SHARED for one in access):
        raise ConfigurationError("reserve= keeps a key for one task: a read lock is for many")
    return reserve


def _uniqueness(
    unique: object, name: str, template: KeyTemplate
) -> tuple[Uniqueness | None, Debouncing | None]:
    """How the calls of the task *name* are told apart, if it is unique or debounced."""
    if isinstance(unique, Debounce):
        return None, Debouncing.of(name, unique, template)
    if unique is None:
        return None, None
    return Uniqueness.of(name, Unique.named(unique), template), None


def _check_one_token(access: Sequence[Access]) -> None:
    if all(one.mode is Mode.SHARED for one in access):
        raise ConfigurationError("a read lock has no fencing token: do not ask for fencing_token")
    if len(own_places(access)) > 1:
        raise ConfigurationError(
            "with several keys there is no single fencing_token: "
            "ask for lease and use lease.fencing_tokens"
        )
