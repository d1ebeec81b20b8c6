"""The fields of a key template: ``{order_id}``, ``{order.id}``, ``{order[id]}``, ``{ids[0]}``.

The grammar is that of :meth:`str.format`, by name only and without conversions or formats.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import BoundArguments, Parameter, Signature
from typing import Any

from celery_dlock.core.checks import did_you_mean
from celery_dlock.errors import ConfigurationError

_FIELD = re.compile(r"([^\W\d]\w*)((?:\.[^\W\d]\w*|\[[^\[\]]+\])*)")
_STEP = re.compile(r"\.(\w+)|\[([^\[\]]+)\]")


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter's name, then steps into its value: each an attribute or an item."""

    text: str
    name: str
    steps: tuple[tuple[str, str], ...]

    @classmethod
    def compile(cls, text: str, signature: Signature) -> Field:
        """Read the *text* between two braces.

        Raises :exc:`~celery_dlock.ConfigurationError` if it is no field or names no parameter.
        """
        match = _FIELD.fullmatch(text)
        if match is None:
            hint = "write a parameter's name, as in {order_id}, {order.id} or {order[id]}"
            raise ConfigurationError(f"{{{text}}} is no field; {hint}")
        name, steps = match.groups()
        known = signature.parameters
        open_ended = any(p.kind is Parameter.VAR_KEYWORD for p in known.values())
        if name not in known and not open_ended:
            hint = did_you_mean(name, known)
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
                value = getattr(value, attribute) if attribute else _item(value, item)
            except (AttributeError, LookupError, TypeError) as exc:
                step = f".{attribute}" if attribute else f"[{item}]"
                raise ValueError(f"{type(value).__name__} has no {step}") from exc
        return value


def _item(value: Any, item: str) -> object:
    index = int(item) if item.isdecimal() else item
    if isinstance(value, dict) and index not in value:
        return value[item]  # JSON has made text of a key that was a number
    return value[index]
