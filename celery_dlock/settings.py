"""The ``dlock_*`` settings of an application, read once and checked as a whole.

An unknown name is an error: a misspelt setting would otherwise silently have its default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_type_hints

from celery_dlock.core.checks import did_you_mean, duration, quoted, str_of
from celery_dlock.errors import ConfigurationError
from celery_dlock.registry import SINKS
from celery_dlock.stores.base import BackendOptions, Copies, LockBackend, Trait

PREFIX = "dlock_"
LARGEST_EPOCH = 1023

#: Seconds for which the history keeps an event.
A_DAY = 86_400.0

OF_TASKS = "(An option of tasks is none: for all of them their base class has it, as lock_ttl.)"

Sink = str | Callable[..., object]
CatchUp = Literal["none", "once"]


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """The database that keeps the events, as SQLAlchemy names it, and for how many seconds."""

    url: str = field(repr=False)
    keep: float = A_DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Each field is the setting ``dlock_<field>``, with its check; durations are in seconds.

    ``done_ttl`` is by default two hours, and no less than twice the visibility timeout of the
    broker, since a duplicate of a finished task can be redelivered until then. ``doctor_ignore``
    has the reason why a check is waived, by the name of the check.
    """

    url: Annotated[str, _url] = field(repr=False)
    require: Annotated[frozenset[Trait], _traits] = frozenset()
    ttl: Annotated[float, duration] = 30.0
    max_hold: Annotated[float | None, duration] = None
    key_prefix: Annotated[str, _key_prefix] = "dlock"
    done_ttl: Annotated[float | None, partial(duration, zero=True)] = None
    fencing_epoch: Annotated[int, _epoch] = 0
    wait_replicas: Annotated[Copies | None, _copies] = None
    backend_options: Annotated[Mapping[str, Any], _options] = field(
        default_factory=dict[str, Any], repr=False
    )
    sinks: Annotated[tuple[Sink, ...], _sinks] = ()
    history: Annotated[HistoryOptions | None, _history] = None
    broker: Annotated[str | None, _broker] = None
    beat_scheduler: Annotated[str, _name] = "celery.beat:PersistentScheduler"
    beat_catch_up: Annotated[CatchUp, _catch_up] = "once"
    doctor_ignore: Annotated[Mapping[str, str], _reasons] = field(default_factory=dict[str, str])

    @classmethod
    def from_conf(cls, conf: Any, url: str | None = None) -> Settings:
        """Read ``app.conf``, with or without a namespace; *url* stands in for ``dlock_url``.

        Raises :exc:`~celery_dlock.ConfigurationError` for a missing, wrong or unknown setting.
        """
        # Reading comes first: until then Celery has not loaded the configuration.
        values = {name: conf.get(PREFIX + name) for name in _CHECKS}
        _refuse_unknown(conf)
        values["url"] = url or values["url"]
        if values["url"] is None:
            raise ConfigurationError(
                "dlock_url is not set: it names the lock store. sqlite:///dlock.db needs no "
                "server and no extra, and serves all processes of a single machine"
            )
        present = {name: value for name, value in values.items() if value is not None}
        return cls(**{name: _CHECKS[name](PREFIX + name, v) for name, v in present.items()})

    @property
    def options(self) -> BackendOptions:
        """The options of the store."""
        return BackendOptions(
            prefix=self.key_prefix,
            ttl=self.ttl,
            driver=self.backend_options,
            copies=self.wait_replicas,
        )

    def check(self, backend: type[LockBackend]) -> None:
        """Raise :exc:`~celery_dlock.ConfigurationError` if *backend* lacks a required trait."""
        missing = self.require - backend.traits
        if missing:
            lacks = f"{', '.join(sorted(missing))}, which {backend.__name__} lacks"
            has = ", ".join(sorted(backend.traits)) or "no traits"
            raise ConfigurationError(f"dlock_require asks for {lacks}; it has {has}")
        if self.wait_replicas and not backend.replicates:
            raise ConfigurationError(
                f"dlock_wait_replicas is for replicas of Redis, and {backend.__name__} has none"
            )


def _refuse_unknown(conf: Any) -> None:
    """Celery finds ``dlock_url``, and under a namespace ``CELERY_DLOCK_URL``, in that spelling."""
    namespace = getattr(conf, "prefix", None) or ""
    spell = str.upper if namespace.isupper() else str.lower
    names = {PREFIX + name for name in _CHECKS}
    spellings = {spell(namespace + name) for name in names}
    for key in [key for key in conf if isinstance(key, str) and key not in names | spellings]:
        lower = key.lower()
        in_namespace = namespace != "" and lower.startswith((namespace + PREFIX).lower())
        # Celery reads no upper-case name; it is harmless if it only feeds the setting proper.
        is_unread = lower in names and conf.get(lower) is None
        if key.startswith(PREFIX) or in_namespace or is_unread:
            hint = did_you_mean(
                lower.rpartition(PREFIX)[2], map(spell, _CHECKS), spell(namespace + PREFIX)
            )
            raise ConfigurationError(f"unknown setting {str_of(key)}; {hint} {OF_TASKS}")


def _url(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        example = "such as redis://localhost:6379/2"
        raise ConfigurationError(
            f"{name} must be the URL of a lock store, {example}, got {quoted(value)}"
        )
    return value


def _name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} must be a name, got {quoted(value)}")
    return value


def _broker(name: str, value: Any) -> str:
    broker = _name(name, value)
    if "@" in broker.partition("://")[2]:
        raise ConfigurationError(f"{name} is stored and logged: leave out user and password")
    return broker


def _traits(name: str, value: Any) -> frozenset[Trait]:
    names = [str(trait) for trait in Trait]
    for entry in (traits := _listing(name, value)):
        if entry not in names:
            hint = did_you_mean(entry, names)
            raise ConfigurationError(f"{name}: no trait {quoted(entry)}; {hint}")
    return frozenset(map(Trait, traits))


def _one_of(words: Sequence[str], name: str, value: Any) -> str:
    if value not in words:
        *others, last = map(repr, words)
        raise ConfigurationError(
            f"{name} must be {', '.join(others)} or {last}, got {quoted(value)}"
        )
    return str(value)


_catch_up = partial(_one_of, get_args(CatchUp))


def _key_prefix(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _KEY_PREFIX.fullmatch(value):
        raise ConfigurationError(f"{name} must be letters, digits and _.:/-, got {quoted(value)}")
    return value


def _epoch(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_EPOCH:
        raise ConfigurationError(
            f"{name} must be a whole number from 0 to {LARGEST_EPOCH}, got {quoted(value)}"
        )
    return value


def _copies(name: str, value: Any) -> Copies:
    """A number of replicas, or a dict with more than that."""
    entries = _entries(name, value, "replicas", "timeout")
    replicas = entries.get("replicas")
    if type(replicas) is not int or replicas < 1:
        raise ConfigurationError(
            f"{name} is a number of replicas from 1 up, got {quoted(replicas)}"
        )
    return Copies(replicas, duration(f"{name}: timeout", entries.get("timeout", 1.0)))


def _options(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} must be a dict, got {type(value).__name__}")
    return dict(value)


def _reasons(name: str, value: Any) -> dict[str, str]:
    for check, reason in (reasons := _options(name, value)).items():
        if not isinstance(check, str) or not isinstance(reason, str) or not reason.strip():
            raise ConfigurationError(
                f"{name} takes names of checks, each with a reason: "
                f'{{"tasks-acks-late": "bodies may run again"}}, got {quoted({check: reason})}'
            )
    return reasons


def _sinks(name: str, value: Any) -> tuple[Sink, ...]:
    for sink in (sinks := _listing(name, value)):
        if not callable(sink) and not (isinstance(sink, str) and _names_a_sink(sink)):
            raise ConfigurationError(
                f"{name} takes callables, dotted paths such as 'shop.locks.count', or names of "
                f"exporters, got {quoted(sink)}; {did_you_mean(sink, SINKS)}"
            )
    return sinks


def _names_a_sink(text: str) -> bool:
    return text in SINKS or _DOTTED.fullmatch(text) is not None


def _history(name: str, value: Any) -> HistoryOptions:
    """A URL, or a dict with more than that."""
    entries = _entries(name, value, "url", "keep")
    url = entries.get("url")
    if not isinstance(url, str) or "://" not in url:
        raise ConfigurationError(
            f"{name} must be the URL of a database, as SQLAlchemy writes it: "
            "sqlite:///locks-history.db"
        )
    return HistoryOptions(url, duration(f"{name}: keep", entries.get("keep", A_DAY)))


def _entries(name: str, value: Any, *names: str) -> Mapping[Any, Any]:
    """The dict *value*, which has entries of these *names*, or one with *value* as the first."""
    entries: Mapping[Any, Any] = value if isinstance(value, Mapping) else {names[0]: value}
    for entry in entries.keys() - set(names):
        raise ConfigurationError(f"{name} has no {quoted(entry)}; {did_you_mean(entry, names)}")
    return entries


def _listing(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{name} must be a list, got {quoted(value)}")
    return tuple(value)


_KEY_PREFIX = re.compile(r"[A-Za-z0-9_.:/-]+")
_DOTTED = re.compile(r"[^\W\d]\w*([.:][^\W\d]\w*)+")

_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Settings, include_extras=True).items()
}
