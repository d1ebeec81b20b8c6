"""From what a page found to HTML: every text escaped, every link relative to where the site is.

A request that htmx makes for a page gets only the part of it that changes. Keys, ids, names and
errors come from anywhere: a sign that is not seen, or that turns the ones after it around, is shown
as its code; what a browser could take for markup is Jinja's matter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from celery_dlock.ops.event_text import Clock, lasting

FOLDER = Path(__file__).parent

#: Of a text in a list so much is shown.
SHOWN = 120

_NOT_PLAIN = re.compile(r"[^ -~]")

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_HTMX = json.dumps(
    {
        "allowEval": False,
        "allowScriptTags": False,
        "historyEnabled": False,
        "includeIndicatorStyles": False,
        "timeout": 10_000,
        "responseHandling": [
            {"code": "2..", "swap": True},
            {
                "code": "...",
                "swap": True,
                "error": True,
                "target": "#trouble",
                "swapOverride": "innerHTML",
            },
        ],
    }
)


def link(request: Request, name: str, /, **query: object) -> str:
    """The address of the page *name*, without a host; what is empty is left out of its query."""
    at = _at(request, name)
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return f"{at}?{urlencode(given, errors='surrogatepass')}" if given else at


def _at(request: Request, name: str, **path: str) -> str:
    return f"{request.scope.get('root_path', '')}{request.app.url_path_for(name, **path)}"


def show(
    request: Request,
    template: str,
    status: int = 200,
    *,
    now: datetime | None = None,
    **context: Any,
) -> HTMLResponse:
    """*template* with what was *context*: the whole page, or the part that is live.

    Ages are reckoned from *now*, which is the store's where it was asked, else this host's.
    """

    def static(path: str) -> str:
        return _at(request, "static", path=path)

    zone, now = request.app.state.zone, now or datetime.now(UTC)

    def instant(moment: Any) -> str:
        return str(moment.astimezone(zone).isoformat(" ", "milliseconds"))

    query = f"?{request.url.query}" if request.url.query else ""
    return HTMLResponse(
        _templates.get_template(template).render(
            layout="live.html" if "hx-request" in request.headers else "layout.html",
            htmx_config=_HTMX,
            link=partial(link, request),
            static=static,
            instant=instant,
            here=f"{request.scope['path']}{query}",
            page=template,
            clock=Clock(now, zone).tell,
            now=now,
            may_act=getattr(request.state, "dlock_may_act", False),
            said=getattr(request.state, "dlock_said", ""),
            **context,
        ),
        status,
    )


def pieces(text: object) -> Iterator[tuple[str, bool]]:
    """*text* in pieces, and of each whether it is the code of a sign that is not to be seen."""
    plain = 0
    whole = str(text)
    for match in _NOT_PLAIN.finditer(whole):
        if match[0].isprintable():
            continue
        if match.start() > plain:
            yield whole[plain : match.start()], False
        yield f"U+{ord(match[0]):04X}", True
        plain = match.end()
    if plain < len(whole):
        yield whole[plain:], False


def short(text: object, longest: int = SHOWN) -> str:
    """*text* for a list: its beginning, if it is long."""
    whole = str(text)
    return whole if len(whole) <= longest else f"{whole[:longest]}… ({len(whole)} characters)"


def anchor(texts: Iterable[object]) -> str:
    """The same for the same *texts*, and good as the id of an element."""
    joined = "\0".join(map(str, texts)).encode(errors="surrogatepass")
    return "i" + hashlib.blake2s(joined, digest_size=8).hexdigest()


def span(seconds: float) -> str:
    """So many *seconds* in two units at most: ``0.2 s``, ``48 s``, ``3 min 5 s``, ``2 d 4 h``."""
    return f"{round(max(0.0, seconds), 3):.2g} s" if seconds < 1 else lasting(seconds)


def due(instant: datetime, now: datetime) -> str:
    """How far *instant* is from *now*, in words, be it past or to come."""
    return f"in {span((instant - now).total_seconds())}" if instant > now else ago(instant, now)


def ago(instant: datetime, now: datetime) -> str:
    """How long *instant* is past, in words."""
    return f"{since(instant, now)} ago"


def since(instant: datetime, now: datetime) -> str:
    """How long it has been since *instant*; nothing is below zero, whatever two clocks say."""
    return span(max(0.0, (now - instant).total_seconds()))


_FILTERS: tuple[Any, ...] = (anchor, pieces, short, span, ago, since, due)
_templates.filters.update({filter_.__name__: filter_ for filter_ in _FILTERS})
