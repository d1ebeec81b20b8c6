"""What a server said may quote a password, or bring a terminal to do things: neither is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from celery_dlock.inspection.doctor.finding import Finding

_LOGIN = re.compile(r"://([^:@]*):(.*)@")
_SECRET = re.compile(r"pass|secret|token|credential|api_?key", re.IGNORECASE)
_URLS = ("dlock_url", "broker_url", "broker_read_url", "broker_write_url", "result_backend")
_OPTIONS = (
    *("dlock_backend_options", "broker_transport_options", "result_backend_transport_options"),
    *("broker_password", "redis_password", "dlock_history"),
)


def secrets_of(conf: Any) -> frozenset[str]:
    """Every password in the configuration that the doctor reads, as it is written and as sent."""
    found = {secret for name in _URLS for secret in _in_value(name, conf.get(name))}
    found |= {secret for name in _OPTIONS for secret in _in_value(name, conf.get(name))}
    return frozenset(found - {""})


def shown(finding: Finding, secrets: Iterable[str]) -> Finding:
    """*finding* as it may be shown. What it promises is our own text."""
    hidden = sorted(secrets, key=len, reverse=True)

    def plain(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, "***")
        return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)

    return replace(
        finding,
        where=plain(finding.where),
        found=plain(finding.found),
        mend=plain(finding.mend),
    )


def _in_value(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _in_value(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _in_value(name, inner)
    elif isinstance(value, str):
        yield from _in_url(value)
        if _SECRET.search(name):
            yield value


def _in_url(text: str) -> Iterator[str]:
    for url in (text, *text.split(";")):
        for _, password in _LOGIN.findall(url):
            yield password
            yield unquote(password)
        try:
            query = parse_qsl(urlsplit(url).query)
        except ValueError:
            continue
        yield from (value for name, value in query if _SECRET.search(name))
