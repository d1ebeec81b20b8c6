"""The sizes that the page of the architecture names: of each package, and of the core to trust."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.measure.size import lines_of

PAGE = Path("docs/explanation/architecture.rst")

#: What a user of one store relies on beside the packages that the page lists.
_BESIDE = ("runtime", "settings", "registry", "forking", "files", "errors", "__init__")
_STORE = ("base", "change", "memory", "unreadable", "subprocess", "sql", "redis")

_ROW = re.compile(
    r"   \* - (?P<names>``\w+``(?:, ``\w+``)*)\n"
    r"(?:     - .*\n(?:       .*\n)*)+?     - (?P<size>[\d,]+)\n"
)
_TRUSTED = re.compile(
    r"relies on (?P<names>``core``.*?)With memory,.*?that is (?P<size>[\d,]+) lines", re.DOTALL
)
_LUA = re.compile(r"its (?P<size>[\d,]+) lines of Lua")


@dataclass(frozen=True, slots=True)
class Size:
    """A number of lines on the page, where it stands, and how many there are."""

    names: tuple[str, ...]
    at: tuple[int, int]
    written: int
    counted: int


def sizes(page: str, package: Path) -> Iterator[Size]:
    """Those that *page* names, and what they are in *package*."""
    for row in _ROW.finditer(page):
        parts = re.findall(r"``(\w+)``", row["names"])
        yield _size(row, parts, [package / name for name in parts])
    trusted = _TRUSTED.search(page)
    assert trusted
    parts = re.findall(r"``(\w+)``", trusted["names"])
    store = (package / "stores" / name for name in _STORE)
    yield _size(trusted, ["trusted"], [*(package / n for n in (*parts, *_BESIDE)), *store])
    lua = _LUA.search(page)
    assert lua
    yield _size(lua, ["Lua"], [package / "stores/redis/lua"])


def renewed(page: str, package: Path) -> str:
    """*page* with the sizes that *package* has."""
    for size in sorted(sizes(page, package), key=lambda size: size.at, reverse=True):
        first, end = size.at
        page = f"{page[:first]}{size.counted:,}{page[end:]}"
    return page


def _size(match: re.Match[str], names: Iterable[str], parts: Iterable[Path]) -> Size:
    written = int(match["size"].replace(",", ""))
    return Size(tuple(names), match.span("size"), written, sum(map(_lines, parts)))


def _lines(part: Path) -> int:
    files = part.rglob("*") if part.is_dir() else [part.with_suffix(".py")]
    return lines_of(file for file in files if file.suffix in {".py", ".lua"})
