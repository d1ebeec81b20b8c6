"""Texts of others as a reader can trust them, and times as a reader takes them in.

Keys, ids, names and errors come from anywhere. A sign that is not seen, or that turns the ones
after it around, is shown as its code; what a browser could take for markup is Jinja's matter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import datetime

#: Of a text in a list so much is shown.
SHOWN = 120

_NOT_PLAIN = re.compile(r"[^ -~]")

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def pieces(text: object) -> Iterator[tuple[str, bool]]:
    """*text* in pieces, and of each whether it is the code of a sign that is not to be seen."""
    plain = 0
    whole = str(text)
    for found in _NOT_PLAIN.finditer(whole):
        if found[0].isprintable():
            continue
        if found.start() > plain:
            yield whole[plain : found.start()], False
        yield f"U+{ord(found[0]):04X}", True
        plain = found.end()
    if plain < len(whole):
        yield whole[plain:], False


def short(text: object, longest: int = SHOWN) -> str:
    """*text* for a list: its beginning, if it is long."""
    whole = str(text)
    return whole if len(whole) <= longest else f"{whole[:longest]}… ({len(whole)} signs)"


def anchor(texts: Iterable[object]) -> str:
    """The same for the same *texts*, and good as the id of an element."""
    joined = "\0".join(map(str, texts)).encode(errors="surrogatepass")
    return "i" + hashlib.blake2s(joined, digest_size=8).hexdigest()


def span(seconds: float) -> str:
    """So many *seconds* in two units at most: ``0.2 s``, ``48 s``, ``3 min 5 s``, ``2 d 4 h``."""
    if seconds < 1:
        return f"{max(0.0, seconds):.2g} s"
    rest = int(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        if rest >= size or parts:
            parts.append(f"{rest // size} {unit}")
            rest %= size
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not (len(parts) > 1 and part.startswith("0 ")))


def due(instant: datetime, now: datetime) -> str:
    """How far *instant* is from *now*, in words, be it past or to come."""
    return f"in {span((instant - now).total_seconds())}" if instant > now else ago(instant, now)


def ago(instant: datetime, now: datetime) -> str:
    """How long *instant* is past, in words."""
    return f"{since(instant, now)} ago"


def since(instant: datetime, now: datetime) -> str:
    """How long it has been since *instant*; nothing is below zero, whatever two clocks say."""
    return span(max(0.0, (now - instant).total_seconds()))
