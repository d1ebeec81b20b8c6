"""From a task's arguments to the keys it locks, checked when the task is defined.

A key is written as a template over the task's parameters (``"order:{order_id}"``), as a callable
with the task's signature, or as a list of either. Whatever can be wrong without seeing a message
is an error of :meth:`KeyTemplate.compile`.

A template's fields are ``{order_id}``, ``{order.id}``, ``{order[id]}``, ``{ids[0]}``: the grammar
of :meth:`str.format`, by name only and without conversions or formats. ``{order.id}`` also reads
the item ``id`` of a dict.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import BoundArguments, Parameter, Signature
from typing import Any

from celery_dlock.core.canonical import canonical, escape, render
from celery_dlock.core.checks import did_you_mean
from celery_dlock.errors import ConfigurationError

__all__ = ["Key", "KeyTemplate", "canonical"]

Key = str | Callable[..., str]

_FIELD = re.compile(r"([^\W\d]\w*)((?:\.[^\W\d]\w*|\[[^\[\]]+\])*)")
_STEP = re.compile(r"\.(\w+)|\[([^\[\]]+)\]")

#: A field in the notation of ``%``, or with a brace too many.
_OTHER_FORMAT = re.compile(r"%(?:\((\w+)\))?[sdr](?!\w)|\{\{ ?(\w+) ?\}\}")


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """What renders the keys of the task *name*; compiled once, used by every delivery."""

    name: str
    signature: Signature
    parts: tuple[_Text | _Function, ...]
    _named: _Named | None = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", _Named.of(self.signature))

    @classmethod
    def compile(
        cls, key: Key | Sequence[Key] | None, signature: Signature, *, default: str
    ) -> KeyTemplate:
        """Read *key*; ``None`` locks on *default*, the task's name, taken literally.

        *signature* is what callers see: without a bound ``self`` and injected parameters. Raises
        :exc:`~celery_dlock.ConfigurationError` for everything that can be known to be wrong.
        """
        if key is None:
            return cls(default, signature, (_Text(default, (default,)),))
        entries = (key,) if isinstance(key, str) or not isinstance(key, Sequence) else tuple(key)
        if not entries:
            raise ConfigurationError("a lock needs at least one key, got an empty list")
        return cls(default, signature, tuple(_compile(entry, signature) for entry in entries))

    def only(self, places: Sequence[int]) -> KeyTemplate:
        """The same with the templates in these *places*."""
        parts = tuple(self.parts[place] for place in places)
        return dataclasses.replace(self, parts=parts)

    @property
    def is_one_text(self) -> bool:
        """Whether it is one template, and no callable: to render it runs no code of a project."""
        return len(self.parts) == 1 and isinstance(self.parts[0], _Text)

    @property
    def reads_arguments_only(self) -> bool:
        """Whether a call's arguments decide on its keys; a callable may read more, as a context."""
        return all(isinstance(part, _Text) for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The label of each template, as metrics and logs use it: its text, a callable's name."""
        return tuple(part.label for part in self.parts)

    @property
    def shapes(self) -> tuple[str, ...]:
        """What keys look like, by each template: a ``*`` for each field. Not of callables."""
        return tuple(part.shape for part in self.parts if isinstance(part, _Text))

    def keys(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """The keys of a call, each once, sorted. Raises as :meth:`rendered` does."""
        return tuple(sorted(set(self.rendered(args, kwargs))))

    def rendered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """The key that each template makes of a call.

        Raises :exc:`TypeError` when the task cannot be called like that, and
        :exc:`~celery_dlock.ConfigurationError` when a value has no canonical text.
        """
        call = self.call(args, kwargs)
        return tuple([part.key(call) for part in self.parts])

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments:
        """The arguments with their defaults. Raises :exc:`TypeError` as :meth:`rendered` does."""
        call = self._named and self._named.call(args, kwargs)
        if not call:
            try:
                call = self.signature.bind(*args, **kwargs)
            except TypeError as exc:
                raise TypeError(f"{self.name}() {exc}") from None
            call.apply_defaults()
        return call


@dataclass(frozen=True, slots=True)
class _Named:
    """The parameters of a signature that has none but those with names that may also go by place.

    :meth:`Signature.bind` takes longer than all the rest of a key.
    """

    signature: Signature
    names: tuple[str, ...]
    as_set: frozenset[str]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, signature: Signature) -> _Named | None:
        parameters = signature.parameters.values()
        if any(p.kind is not Parameter.POSITIONAL_OR_KEYWORD for p in parameters):
            return None
        names = tuple(signature.parameters)
        defaults = {p.name: p.default for p in parameters if p.default is not Parameter.empty}
        return cls(signature, names, frozenset(names), defaults)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments | None:
        """A call with its defaults; ``None`` if it is none, of which others say what is wrong."""
        if not (type(kwargs) is dict and type(args) in (list, tuple)):
            return None
        given = dict(zip(self.names, args, strict=False)) | kwargs
        arguments = {**self.defaults, **given}
        if len(given) != len(args) + len(kwargs) or arguments.keys() != self.as_set:
            return None
        return BoundArguments(self.signature, arguments)


@dataclass(frozen=True, slots=True)
class _Text:
    """A template: literal text and fields, in turn.

    The text is escaped piece by piece, so that ``%`` and a value of ``41`` make no ``%41``.
    """

    label: str
    pieces: tuple[str | _Field, ...]

    @property
    def shape(self) -> str:
        return "".join(piece if isinstance(piece, str) else "*" for piece in self.pieces)

    def key(self, call: BoundArguments) -> str:
        return canonical("".join([self._render(piece, call) for piece in self.pieces]))

    def _render(self, piece: str | _Field, call: BoundArguments) -> str:
        if isinstance(piece, str):
            return piece
        context = f"lock key {self.label!r}, {{{piece.text}}}"
        try:
            return render(piece.value(call))
        except TypeError as exc:
            hint = f"write what names it, such as {{{piece.text}.id}} or {{{piece.text}[id]}}"
            raise ConfigurationError(f"{context}: {exc}; {hint}") from exc
        except (ValueError, OverflowError) as exc:
            raise ConfigurationError(f"{context}: {exc}") from exc


@dataclass(frozen=True, slots=True)
class _Field:
    """A parameter's name, then steps into its value: each an attribute or an item."""

    text: str
    name: str
    steps: tuple[tuple[str, str], ...]

    @classmethod
    def compile(cls, text: str, signature: Signature) -> _Field:
        """Read the *text* between two braces.

        Raises :exc:`~celery_dlock.ConfigurationError` if it is no field or names no parameter.
        """
        match = _FIELD.fullmatch(text)
        if match is None:
            hint = "write a parameter's name, as in {order_id}, {order.id} or {order[id]}"
            raise ConfigurationError(f"{{{text}}} is no field; {hint}")
        name, steps = match.groups()
        parameters = signature.parameters
        open_ended = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
        if name not in parameters and not open_ended:
            hint = did_you_mean(name, parameters)
            raise ConfigurationError(f"the task has no parameter {name!r}; {hint}")
        return cls(text, name, tuple((m[1] or "", m[2] or "") for m in _STEP.finditer(steps)))

    def value(self, call: BoundArguments) -> object:
        """What a call, with its defaults applied, has there. Raises :exc:`ValueError`."""
        arguments = call.arguments if self.name in call.arguments else call.kwargs
        if self.name not in arguments:
            raise ValueError("the call has no such argument")
        value: object = arguments[self.name]
        for attribute, item in self.steps:
            try:
                value = _attribute(value, attribute) if attribute else _item(value, item)
            except (AttributeError, LookupError, TypeError) as exc:
                step = f".{attribute}" if attribute else f"[{item}]"
                raise ValueError(f"{type(value).__name__} has no {step}") from exc
        return value


def _attribute(value: object, attribute: str) -> object:
    """Of a dict its item: a serializer has made a dict of the object that the author knows."""
    if isinstance(value, Mapping):
        if attribute in value:
            return value[attribute]
        raise AttributeError(attribute)  # not a method of the dict
    return getattr(value, attribute)


def _item(value: Any, item: str) -> object:
    index = int(item) if item.isdecimal() else item
    if isinstance(value, dict) and index not in value:
        return value[item]  # JSON has made text of a key that was a number
    return value[index]


@dataclass(frozen=True, slots=True)
class _Function:
    """A callable, which is called as the body is."""

    label: str
    function: Callable[..., object]

    def key(self, call: BoundArguments) -> str:
        key = self.function(*call.args, **call.kwargs)
        try:
            return canonical(key)
        except ConfigurationError as exc:
            raise ConfigurationError(f"lock key from {self.label}(): {exc}") from exc


def _compile(entry: object, signature: Signature) -> _Text | _Function:
    if isinstance(entry, str):
        return _compile_text(entry, signature)
    if not callable(entry):
        kind = type(entry).__name__
        raise ConfigurationError(f"a lock key is a template or a callable, not {kind}")
    label = label_of(entry)
    check_callable(f"lock key {label}()", entry, signature)
    return _Function(label, entry)


def label_of(function: Callable[..., Any]) -> str:
    """The name of *function* for people."""
    return str(getattr(function, "__name__", type(function).__name__))


def _compile_text(text: str, signature: Signature) -> _Text:
    if not text:
        raise ConfigurationError("a lock key must not be empty")
    pieces: list[str | _Field] = []
    try:
        for literal, field, spec, conversion in string.Formatter().parse(text):
            pieces.append(escape(literal))
            if field is not None:
                pieces.append(_compile_field(field, conversion or spec, signature))
        if all(isinstance(piece, str) for piece in pieces):
            _refuse_other_formats(text, signature)
    except ValueError as exc:
        hint = "write a field as {order_id}, and a literal brace twice"
        raise ConfigurationError(f"lock key {text!r}: {exc}; {hint}") from exc
    except ConfigurationError as exc:
        raise ConfigurationError(f"lock key {text!r}: {exc}") from exc
    return _Text(text, tuple(pieces))


def _refuse_other_formats(text: str, signature: Signature) -> None:
    """Raise for a field in another notation: in a template without one, all calls share the key."""
    parameters = list(signature.parameters)
    for field in _OTHER_FORMAT.finditer(text):
        name = field[1] or field[2] or next(iter(parameters), None)
        if name in parameters:
            raise ConfigurationError(f"{field[0]} is text, the same for all; write {{{name}}}")


def _compile_field(field: str, extra: str | None, signature: Signature) -> _Field:
    if extra:
        hint = f'format it in a callable, as in key=lambda {field}: f"…{{{field}:05d}}"'
        raise ConfigurationError(f"{{{field}}} takes no !conversion and no :format; {hint}")
    return _Field.compile(field, signature)


def signature_of(function: Callable[..., Any]) -> Signature:
    """The parameters of *function*, whose annotations are text where Python would evaluate them.

    Python 3.14 does so by default, and types that only checkers import have no value. Raises as
    :func:`inspect.signature` does.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.STRING)
    return inspect.signature(function)


def check_callable(
    label: str,
    function: Callable[..., Any],
    signature: Signature,
    called: str = " as the task is,",
) -> None:
    """Refuse a callable that no call of the task would fit, or that has to be awaited."""
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"{label} is a coroutine function, and nobody awaits it")
    try:
        accepts = signature_of(function)
    except (TypeError, ValueError):
        return  # a builtin that does not tell
    kinds = {name: p.kind for name, p in signature.parameters.items()}
    by_place = [name for name, kind in kinds.items() if kind <= Parameter.POSITIONAL_OR_KEYWORD]
    by_name = {name: name for name, kind in kinds.items() if kind is Parameter.KEYWORD_ONLY}
    try:
        accepts.bind(*by_place, **by_name)
    except TypeError as exc:
        how = f"is called{called} {signature}, which does not fit"
        raise ConfigurationError(f"{label} {how}: {exc}") from exc
