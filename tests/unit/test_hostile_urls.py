"""Whatever stands in the URL of a store: it is read, or refused, and its password is not told."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_dlock.errors import ConfigurationError
from celery_dlock.registry import BACKENDS, open_backend
from celery_dlock.stores.base import BackendOptions
from tests.services.hostile import PASSWORD, examples, refused

pytestmark = pytest.mark.once

HOSTS = st.one_of(
    st.sampled_from(
        [
            *(
                "h",
                "h:1,i:2,j:3",
                "[::1]:6379",
                "[::1",
                "h:99999",
                "h:x",
                ":",
                ",",
                "",
                "h:1,",
                "h h",
            ),
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
    *(
        "password",
        "username",
        "encoding",
        "retry_on_timeout",
        "connection_class",
        "decode_responses",
    ),
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
        assert PASSWORD not in repr(store) + str(store.missing())


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
