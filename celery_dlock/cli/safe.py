"""Keys and task ids are anybody's text: none of it may steer the terminal it is shown on.

Escape sequences, line ends, marks that turn the direction of writing, and blanks that look like
nothing are written out. What is quoted so can be pasted into a shell as it stands.
"""

from __future__ import annotations

import json
from typing import Any

#: As a shell writes them between ``$'`` and ``'``.
_QUOTED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(text: str) -> str:
    """*text* as it is where that can do no harm, else in the quotes ``$'…'`` of a shell."""
    plain = text.isprintable() and text == text.strip() and not text.startswith("$'")
    if plain and text:
        return text
    quoted = (_QUOTED.get(char) or one_line(char) for char in text)
    return f"$'{''.join(quoted)}'"


def one_line(text: str) -> str:
    """*text* with all that is not printable written out; for sentences that name keys."""
    return "".join(char if char.isprintable() else _escaped(ord(char)) for char in text)


def as_json(value: Any) -> str:
    """*value* for programs, in printable ASCII, which a terminal may have to show all the same."""
    return json.dumps(value, indent=2)


def _escaped(code: int) -> str:
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
