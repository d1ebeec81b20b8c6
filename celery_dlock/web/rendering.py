"""From what a page found to HTML: every text escaped, every link relative to where the site is.

A request that htmx makes for a page gets only the part of it that changes.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from celery_dlock.web import text

FOLDER = Path(__file__).parent

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS: dict[str, Any] = {
    "anchor": text.anchor,
    "pieces": text.pieces,
    "short": text.short,
    "span": text.span,
    "ago": text.ago,
    "since": text.since,
    "due": text.due,
}
_templates.filters.update(_FILTERS)
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
    request: Request, template: str, status: int = 200, *, now: datetime | None = None, **found: Any
) -> HTMLResponse:
    """*template* with what was *found*: the whole page, or the part that is live.

    Ages are reckoned from *now*, which is the store's where it was asked, else this host's.
    """

    def to(name: str, **query: object) -> str:
        return link(request, name, **query)

    def static(path: str) -> str:
        return _at(request, "static", path=path)

    def instant(moment: Any) -> str:
        zone = request.app.state.zone
        return str(moment.astimezone(zone).isoformat(" ", "milliseconds"))

    query = f"?{request.url.query}" if request.url.query else ""
    return HTMLResponse(
        _templates.get_template(template).render(
            layout="live.html" if "hx-request" in request.headers else "layout.html",
            htmx_config=_HTMX,
            link=to,
            static=static,
            instant=instant,
            here=f"{request.scope['path']}{query}",
            page=template,
            now=now or datetime.now(UTC),
            may_act=getattr(request.state, "dlock_may_act", False),
            **found,
        ),
        status,
    )
