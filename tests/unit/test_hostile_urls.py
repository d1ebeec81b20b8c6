"""Whatever stands in the URL of a store or of a history: it is read, or refused, and keeps quiet.

No password is told, and the file of a history is its owner's.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy.exc import ArgumentError

from celery_dlock.errors import ConfigurationError
from celery_dlock.monitoring import history
from celery_dlock.monitoring.history import create, open_engine
from celery_dlock.registry import BACKENDS, open_backend
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.sql.sqlite import SqliteBackend
from tests.services.hostile import PASSWORD, examples, refused

pytestmark = pytest.mark.once

HOSTS = st.one_of(
    st.sampled_from(
        [
            *("h", "h:1,i:2,j:3", "[::1]:6379", "[::1", "h:99999", "h:x", ":", ",", "", "h:1,"),
            "h h",
            *("h:-1", "\u2100", "h@i", "\0", "h:1,h:1,h:1", "%", "h:\u0661"),
        ]
    ),
    st.text(max_size=9),
)
PATHS = st.one_of(
    st.sampled_from(
        ["", "/", "/0", "/-1", "/x", "/a/../b", "//", "/mymaster", "/mymaster/1", "/\0"]
    ),
    st.text(max_size=9).map("/{}".format),
)
NAMES = [
    *("retry", "db", "timeout", "socket_timeout", "ssl_cert_reqs", "max_connections", "protocol"),
    *("health_check_interval", "credential_provider", "host", "port", "path", "client_name", "x"),
    *("password", "username", "encoding", "retry_on_timeout", "connection_class"),
    "decode_responses",
]
VALUES = st.sampled_from(["5", "", "soon", "nan", "-1", "1e999", "True", "%00", "9" * 400])
QUERIES = st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=3).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
)


def is_read_or_refused(url: str) -> None:
    try:
        store = open_backend(url, BackendOptions())
    except ConfigurationError as exc:
        refused(exc)
    else:
        assert PASSWORD not in repr(store)
        if isinstance(store, SqliteBackend):  # it asks no server
            assert PASSWORD not in store.missing()


@pytest.mark.parametrize("scheme", sorted(BACKENDS))
@examples(60)
@given(
    user=st.sampled_from(
        ["", f":{PASSWORD}@", f"u:{PASSWORD}@", f"{PASSWORD}@", f"u:{PASSWORD}/@"]
    ),
    host=HOSTS,
    path=PATHS,
    query=QUERIES,
)
@example(user="", host="h", path="/0", query="retry=5")
def test_any_url(scheme: str, user: str, host: str, path: str, query: str) -> None:
    is_read_or_refused(f"{scheme}://{user}{host}{path}{'?' if query else ''}{query}")


@examples(200)
@given(st.text().map(lambda text: f"{text}://:{PASSWORD}@h"))
def test_any_scheme(url: str) -> None:
    is_read_or_refused(url)


@examples(200)
@given(
    scheme=st.sampled_from(["sqlite", "mysql+pymysql", "postgresql+psycopg", "nothing", "a b", ""]),
    colon=st.sampled_from(["://", ":/", "//", ":"]),
    host=st.one_of(st.sampled_from(["h:x", "[::1", "h:99999", "h,i", ""]), st.text(max_size=9)),
    end=st.sampled_from(["", "/x", "/x?", f"/?password={PASSWORD}", "/x?a=b&a=c", "?timeout=soon"]),
)
def test_any_url_of_a_history(scheme: str, colon: str, host: str, end: str) -> None:
    try:
        open_engine(f"{scheme}{colon}u:{PASSWORD}@{host}{end}").dispose()
    except ConfigurationError as exc:
        refused(exc)


def test_what_sqlalchemy_quotes_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_in_2_0_0(url: str) -> None:
        raise ArgumentError(f"Could not parse SQLAlchemy URL from string '{url}'")

    monkeypatch.setattr(history, "make_url", as_in_2_0_0)
    with pytest.raises(ConfigurationError) as caught:
        open_engine(f"postgresql//u:{PASSWORD}@h/x")
    refused(caught.value)


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite:///{}?timeout=1"])
def test_its_file_is_made_for_its_owner_alone(tmp_path: Path, url: str) -> None:
    engine = open_engine(url.format(tmp_path / "history.db"))
    before = os.umask(0)
    try:
        create(engine)
    finally:
        os.umask(before)
        engine.dispose()

    (made,) = tmp_path.iterdir()
    assert oct(made.stat().st_mode & 0o777) == "0o600"
