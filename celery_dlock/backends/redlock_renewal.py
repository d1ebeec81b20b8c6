"""Many leases renewed in one flight, each by its own majority."""

from __future__ import annotations

from collections.abc import Sequence

from celery_dlock.backends import redlock_wire as wire
from celery_dlock.backends.redlock_council import Council, nothing_less
from celery_dlock.backends.redlock_resp import Call
from celery_dlock.backends.redlock_votes import held_until
from celery_dlock.core.state import Claim, Lost, Renewed, RenewVerdict, Unknown
from celery_dlock.errors import BackendUnavailable


def renew(council: Council, calls: wire.Wire, claims: Sequence[Claim]) -> list[RenewVerdict]:
    """One verdict a claim; a claim that some nodes do not know is held there, too, from now on.

    Without that a lease that lasts would lose its majority when the nodes are restarted in turn.
    Nobody waits for a renewal, so every node is heard.
    """
    answers = council.ask(calls.renew(claims), nothing_less, calls.keep(claims))
    found = {number: wire.renewed(answer, len(claims)) for number, answer in answers.nodes.items()}
    rows = {number: row for number, row in found.items() if row is not None}
    verdicts: list[RenewVerdict] = []
    missing: dict[int, list[Call]] = {}
    for n, claim in enumerate(claims):
        kept = [extended for row in rows.values() if (extended := row[n]) is not None]
        if len(kept) >= council.majority:
            verdicts.append(Renewed(held_until([each.expires for each in kept], council.size)))
            latest = max(kept, key=lambda each: each.token)
            for number, row in rows.items():
                if row[n] is None:
                    again = calls.take(claim, latest.slot, latest.token, renewed=True)
                    missing.setdefault(number, []).append(again)
        elif len(kept) + council.size - len(rows) < council.majority:
            verdicts.append(Lost())
        else:
            verdicts.append(Unknown())
    if all(isinstance(verdict, Unknown) for verdict in verdicts):
        raise BackendUnavailable(f"no majority of {council.size} Redis nodes: {council.trouble()}")
    if missing:
        council.tell(missing)
    return verdicts
