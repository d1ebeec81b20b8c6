"""The URL of the history is read without its password being told, and its file is its owner's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import ArgumentError

from celery_dlock.errors import ConfigurationError
from celery_dlock.monitoring import history
from celery_dlock.monitoring.history import create, open_engine
from tests.services.hostile import PASSWORD, examples, refused

pytestmark = pytest.mark.once


@examples(200)
@given(
    scheme=st.sampled_from(["sqlite", "mysql+pymysql", "postgresql+psycopg", "nothing", "a b", ""]),
    colon=st.sampled_from(["://", ":/", "//", ":"]),
    host=st.one_of(st.sampled_from(["h:x", "[::1", "h:99999", "h,i", ""]), st.text(max_size=9)),
    end=st.sampled_from(["", "/x", "/x?", f"/?password={PASSWORD}", "/x?a=b&a=c", "?timeout=soon"]),
)
def test_any_url(scheme: str, colon: str, host: str, end: str) -> None:
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
