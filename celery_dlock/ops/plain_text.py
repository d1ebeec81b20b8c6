"""Keys, ids and sentences as plain text: nothing in them steers what they are shown on."""

from __future__ import annotations

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


def _escaped(code: int) -> str:
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
