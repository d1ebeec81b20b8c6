"""Each canvas × what may become of its member, at the desk: as the table of canvases says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import pytest

from celery_dlock.core.events import Contended
from tests.services.canvases import CANVASES, End
from tests.services.desk import Desk
from tests.services.lab import Journal
from tests.services.members import key_of, register_members
from tests.services.play import value_of
from tests.workers.conftest import held

#: What the policy of a member whose key is taken comes to.
ENDS = {
    "reschedule": End.RUNS,
    "queue": End.RUNS,
    "skip": End.SKIPPED,
    "skip and continue": End.SKIPPED_GO_ON,
    "fail": End.FAILS,
}


#: Where a failure reaches no result further on, before Celery 5.7 (its pull request 10323).
UNTOLD = (
    {"chord in a chain", "chord after it", "chain of chords"} if celery.VERSION < (5, 7) else set()
)


def cases() -> Iterator[Any]:
    for policy, end in ENDS.items():
        for name, canvas in CANVASES.items():
            if end in canvas.comes_to:
                yield pytest.param(name, policy, end, id=f"{name}: {policy}")


# The error callback of a chord is its body's
@pytest.mark.filterwarnings("ignore:task_allow_error_cb:PendingDeprecationWarning")
@pytest.mark.parametrize(("canvas", "policy", "end"), list(cases()))
def test_it_ends_as_the_table_says(
    desk: Desk, tmp_path: Path, canvas: str, policy: str, end: End
) -> None:
    register_members(desk.app, tmp_path)
    case = {"case": canvas}

    def step(label: str, *, immutable: bool = False) -> Any:
        kwargs = {**case, "label": label}
        return desk.app.tasks["step"].signature(kwargs=kwargs, immutable=immutable)

    member = desk.app.tasks[f"member: {policy}"].s(**case, label="member", body="returns")
    work = CANVASES[canvas].make(member, step)
    work.link_error(step("failed", immutable=True))
    result = work.apply_async()
    with held(desk, key_of(canvas)):
        while desk.size() and not (end is End.RUNS and desk.happened(Contended)):
            desk.deliver()
    desk.deliver_all()

    value, others = CANVASES[canvas].comes_to[end]
    untold = end is End.FAILS and canvas in UNTOLD
    comes_to = "(PENDING)" if untold else value.replace("error", "LockContended")
    assert value_of(result) == comes_to
    ran = [entry["label"] for entry in Journal(tmp_path / "journal").read("ran")]
    assert sorted(ran) == sorted([*others.split(), *["member"] * (end is End.RUNS)])
