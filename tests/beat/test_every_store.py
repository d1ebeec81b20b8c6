"""Beats over every lock store that several of them can share: the lead, and what was sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from celery_dlock.beat import leader
from celery_dlock.beat.leader import Status
from celery_dlock.cli.main import dlock
from celery_dlock.ops.gauges import beat_leads
from tests.beat.inside import at, dies
from tests.services.beats import Beats, beats
from tests.services.stores import SHARED, Store


@pytest.fixture(params=SHARED, scope="module")
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.param
    return found


@pytest.fixture
def three(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Beats]:
    """Three beats of one entry, of which the first leads.

    The others stand by for minutes, however long the test takes.
    """
    monkeypatch.setattr(leader, "STANDBY_SECONDS", 600.0)
    settings = {**store.settings(request, tmp_path), "dlock_ttl": 60.0}
    with beats(tmp_path, {"ten": 10.0}, **settings) as of:
        of.tick_all()
        yield of


def show(of: Beats, *arguments: str) -> Result:
    return CliRunner().invoke(dlock, ["beat", *arguments], obj=SimpleNamespace(app=of.app))


def test_who_leads_next_goes_on_and_who_slept_sends_nothing(three: Beats) -> None:
    three.advance(7)
    three.tick_all()
    three.faults["before it is published"] = dies
    three.advance(10)
    three.tick(0)
    assert three.leader() is None

    three.tick(1)
    assert [(sent.beat, sent.due) for sent in three.sent] == [(0, at(10)), (1, at(20))]
    assert three.repeated() == {("ten", at(20).isoformat()): 1}

    three.depose(1)
    three.tick(2)
    three.advance(10)
    three.tick(1)
    three.tick(2)
    assert [(sent.beat, sent.due) for sent in three.sent[2:]] == [(2, at(30))]


def test_it_is_shown_who_leads_and_the_leader_goes_when_it_is_asked_to(three: Beats) -> None:
    who = [beat._leader.who for beat in three.beats]

    shown = json.loads(show(three, "--json").output)
    assert (shown["leader"], shown["standbys"]) == (who[0], who[1:])
    assert shown["due"] == {"ten": at(10).isoformat()}
    assert beat_leads(three.app) is True

    assert Status.of(three.app).ask_to_step_down(three.backend)
    three.tick(0)
    assert three.leader() is None
    three.beats[0].close()
    assert show(three).exit_code == 1
    assert beat_leads(three.app) is False
    three.tick(1)
    assert f"leads      {who[1]}" in show(three).output
