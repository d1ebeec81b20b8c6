"""Something else than was written: any bytes, other types, too deep, too large, or nearly the same.

What it is comes from a random number, so that an example of Hypothesis is one number.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import msgpack

DEEP = b"[" * 100_000 + b"]" * 100_000

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63), 1.5, 1e300, ""),
    *("x", "\ud800", [], {}, [1], {"a": 1}, "exclusive", float("nan"), float("inf")),
)


def spoilt(was: bytes, random: Random) -> bytes:
    """Something else instead of *was*, often only a little."""
    half = random.randrange(len(was) + 1)
    odd = random.choice(ODD)
    makes: tuple[Callable[[], bytes], ...] = (
        lambda: random.randbytes(random.randrange(40)),
        lambda: was[:half],
        lambda: was[:half] + bytes([random.randrange(256)]) + was[half + 1 :],
        lambda: was + random.randbytes(3),
        lambda: str(odd).encode("utf-8", "surrogatepass"),
        lambda: json.dumps(odd).encode(),
        lambda: b"9" * random.choice((19, 400, 5000)),
        lambda: DEEP,
        lambda: b"\xff\xfe",
        *[lambda: _changed(was, random, odd)] * 6,
    )
    return random.choice(makes)()


def _changed(was: bytes, random: Random, odd: Any) -> bytes:
    """*was* with one value in it replaced, if it is JSON or what Redis' scripts write."""
    with suppress(ValueError):
        return json.dumps(_replaced(json.loads(was), random, odd)).encode()
    with suppress(Exception):
        known = msgpack.unpackb(was, strict_map_key=False, raw=True)
        if isinstance(known, list):
            odd = odd.encode("utf-8", "surrogatepass") if isinstance(odd, str) else odd
            packed: bytes = msgpack.packb(_replaced(known, random, odd))
            return packed
    return odd if isinstance(odd, bytes) else str(odd).encode("utf-8", "surrogatepass")


def _replaced(value: Any, random: Random, odd: Any) -> Any:
    if not isinstance(value, (list, dict)) or not value or random.random() < 0.1:
        return odd
    if isinstance(value, dict):
        chosen = random.choice(sorted(value))
        return {**value, chosen: _replaced(value[chosen], random, odd)}
    at = random.randrange(len(value))
    return [*value[:at], _replaced(value[at], random, odd), *value[at + 1 :]]
