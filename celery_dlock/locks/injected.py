"""The default of a parameter that the library passes to a body: it is there for type checkers.

A body that runs as a task never sees it. One that is called without its task, as ``charge.run(42)``
does, would have it for a fencing token: it is no number, and what any object allows is refused.
"""

from __future__ import annotations

from typing import Any, NoReturn

#: What a body may ask for by name, keyword-only; callers never pass these.
NAMES = frozenset({"fencing_token", "lease"})


class Injected:
    """Neither a number nor a lease: using it as one raises :exc:`TypeError`, or AttributeError."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            "there is no fencing token and no lease here: this body was called without its task; "
            "call the task, which takes the lock, or pass them yourself"
        )

    def __eq__(self, other: object) -> bool:
        return other is self or self._refuse()

    def __repr__(self) -> str:
        return "INJECTED"

    __hash__ = object.__hash__
    __bool__ = __str__ = __format__ = _refuse


#: The default of ``fencing_token`` and ``lease`` in a body with types.
INJECTED: Any = Injected()
