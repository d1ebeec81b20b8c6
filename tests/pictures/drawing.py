"""Pictures for the documentation, of real commands at a terminal and of the real page.

``DLOCK_SCREENSHOTS=docs/images`` makes them anew; without it each has to say what is said today,
whatever the numbers, the times and the order. Those of a terminal are SVGs, whose words are text;
one of a page has what was to be read on it as its comment.
"""

from __future__ import annotations

import html
import io
import os
import re
import struct
import zlib
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parents[2] / "docs/images"

#: Without fonts from elsewhere, which a picture on a page does not get anyway.
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)

#: What differs each time, and what is put in its place: days, durations, numbers, lines of tables.
_OPEN = (
    (r"\d+-\d+-\d+ (?=\d+:)", ""),
    (r"\d+ (?:d|h|min|s)\b(?: \d+ (?:h|min|s)\b)?", "0 s"),
    (r"[+-]?\d+(?:\.\d+)?", "0"),
    (r"[━─]+", "─"),
)

#: The beginning of a PNG up to its first chunk, and how one begins that is a comment in UTF-8.
_HEAD = 33
_COMMENT = b"iTXtComment\0\0\0\0\0"


def shows_terminal(name: str, command: str, printed: str, columns: int) -> None:
    """The picture *name* is of what *command* has *printed*, on so many *columns*."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    text = Text.from_ansi(printed.replace("\r\n", "\n"))
    text.rstrip()
    console.print(text)
    drawn = console.export_svg(title=command, code_format=_FORMAT, unique_id="terminal")
    _keep(name, drawn.encode())


def shows_page(name: str, screenshot: bytes, said: str) -> None:
    """The picture *name*, if it is in the documentation, is of a page that *said* this."""
    if (IMAGES / name).exists():
        chunk = _COMMENT + said.encode()
        framed = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        _keep(name, screenshot[:_HEAD] + framed + screenshot[_HEAD:])


def _keep(name: str, picture: bytes) -> None:
    if "DLOCK_SCREENSHOTS" in os.environ:
        Path(os.environ["DLOCK_SCREENSHOTS"], name).write_bytes(picture)
        return
    anew = f"docs/images/{name} is of another day: CONTRIBUTING.md says how it is made anew"
    assert _words(picture) == _words((IMAGES / name).read_bytes()), anew


def _words(picture: bytes) -> set[str]:
    read = _comment(picture) if picture.startswith(b"\x89PNG") else _texts(picture.decode())
    for differs, instead in _OPEN:
        read = re.sub(differs, instead, read)
    return set(read.split())


def _comment(png: bytes) -> str:
    if png[_HEAD + 4 :].startswith(_COMMENT):
        (length,) = struct.unpack_from(">I", png, _HEAD)
        return png[_HEAD + 4 + len(_COMMENT) : _HEAD + 8 + length].decode()
    return ""


def _texts(svg: str) -> str:
    return html.unescape(" ".join(re.findall(r"<text[^>]*>(.*?)</text>", svg))).replace("\xa0", " ")
