"""The rows of one key on PostgreSQL: read in one flight, and written in a second if they stand.

What a key's *stamp* says is all that the rules go by, in short: the version of its state, its
holders and the ends of their leases, and what is remembered of the asking task. A flight that
writes has the key's lock, and compares the stamp with the one that was read.

A holder's row that a transaction of the application has locked, as the fence does, is not deleted,
and not waited for: its holder counts as one that still has the key, and is looked at again soon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import OnDeadLetter, Operation
from celery_dlock.core.state import (
    Holder,
    KeyState,
    Mode,
    Run,
    Waiting,
)
from celery_dlock.core.turns import due
from celery_dlock.stores.change import Change
from celery_dlock.stores.postgresql.connection import read_json
from celery_dlock.stores.postgresql.flight import (
    GO,
    Answer,
    Flight,
    WritingFlight,
)
from celery_dlock.stores.postgresql.functions import HELD
from celery_dlock.stores.sql.rows import (
    BY_TASK,
    STATE,
    Cursor,
    KeyRows,
    SqlDialect,
    put,
)
from celery_dlock.stores.stored import as_json, restored, restored_each

V = TypeVar("V")

#: After so many microseconds it is asked again whether a holder's row is in use whose lease has
#: expired.
IN_USE = SECOND

#: The token of a grant until its row has one.
UNNUMBERED = -1

_KEY = "prefix=? AND key=?"

#: See :mod:`celery_dlock.stores.postgresql.functions`.
LOAD = "SELECT load(?, ?, ?, ?, ?)"

_HOLD = f"""INSERT INTO holder (prefix, key, {", ".join(f'"{name}"' for name in HELD)})
    VALUES (?, ?, {", ".join("?" * len(HELD))}) RETURNING token"""

_DROP_ENTRY = f"""DELETE FROM waiting
    WHERE ctid = (SELECT ctid FROM waiting WHERE {_KEY} AND {BY_TASK})"""

# The guard holds only if no transaction of the application has locked one of these holders' rows,
# for which nobody waits. The answer is the tokens of the other rows, if it held before.
_GUARD_HOLDERS = f"""WITH free AS MATERIALIZED (SELECT token FROM holder WHERE prefix=? AND key=?
    AND token = ANY(string_to_array(?, ',')::bigint[]) FOR UPDATE SKIP LOCKED)
SELECT CASE WHEN {GO} THEN (SELECT string_agg(token::text, ',') FROM free) END,
    CASE WHEN {GO} THEN set_config('dlock.go', ((SELECT count(*) FROM free) = ?)::text, true) END"""

_PUT_LEASE = put("lease", "prefix, key, token", '"limit"', "expires", "replaced_by")
_PUT_STATE = put("state", "prefix, key", *STATE.split(", ")) + ", version=excluded.version"


class PostgresqlKeyRows(KeyRows):
    """The rows of one key; *clock* replaces the server's, for tests."""

    def __init__(
        self, flight: Flight, dialect: SqlDialect, prefix: str, key: str, clock: int | None
    ) -> None:
        super().__init__(flight, dialect, prefix, key, clock or 0)
        self._clock = clock
        self._tokens: dict[str, int] = {}
        self._stamp = ""
        self._has_state = False
        self._has_expired = False
        self._last = 0
        self._free: Cursor | None = None
        self._gone: list[int] = []
        self._granted: Cursor | None = None
        self.is_changed = False
        self.is_used = False

    def load(self, operation: Operation[object]) -> KeyState:
        """What *operation* may see: the bounded part of the key's state."""
        claim = operation.claim
        loaded = self._db.execute(LOAD, (self._clock, *self._at, claim.task, claim.successor))
        dead = self.ask_dead(claim.task) if isinstance(operation, OnDeadLetter) else None
        self.now, self._stamp, last, self._has_expired, state, holders, queue, past = read_json(
            loaded.fetchone()[0]
        )
        self._last = last or 0
        self._has_state = state is not None
        waiting = restored_each(Waiting, queue)
        return replace(
            self._key_state(state, holders),
            waiting=waiting,
            first=waiting[0].rank if waiting else 0,
            last=self._last,
            done=frozenset(task for task, done, _ in past if done and task == claim.task),
            lost=tuple(sorted((task, lost) for task, done, lost in past if not done)),
            dead=self._dead(dead.fetchall()) if dead else (),
        )

    def ask_key(self) -> Callable[[], KeyState]:
        state = self._run(f"SELECT {STATE} FROM state WHERE {_KEY}")
        holders = self._run("SELECT holders(?, ?)")
        return lambda: self._key_state(state.fetchone(), read_json(holders.fetchone()[0]))

    def _key_state(self, state: Any, holders: list[dict[str, Any]]) -> KeyState:
        held = tuple(map(self._holder, holders))
        return KeyState(held) if state is None else self._key(held, state)

    def _holder(self, row: dict[str, Any]) -> Holder:
        token = row["token"]
        carried = 0 if row["mode"] == Mode.SHARED else token  # readers carry none
        holder = restored(Holder, {**row, "token": carried})
        self._tokens[holder.owner] = token
        return holder

    def write_to(
        self, flight: WritingFlight, task: str, before: KeyState, state: KeyState
    ) -> Answer:
        """From here on write, if what was loaded for *task* still stands; the guard's answer.

        Nor if one of the holders is in use that *state* does not have any more.
        """
        self._db = flight
        stays = {h.owner for h in state.holders} & self._held(before).keys()
        self._gone = [token for owner, token in self._tokens.items() if owner not in stays]
        guard = flight.guard("stamp(?, ?, ?) = ?", (*self._at, task, self._stamp))
        self._free = None
        if self._gone:
            listed = ",".join(map(str, self._gone))
            self._free = self._run(_GUARD_HOLDERS, listed, len(self._gone))
        return guard

    def found_in_use(self) -> frozenset[int]:
        """The tokens of those, if the guard held; nothing was written if there are any."""
        if self._free is None:
            return frozenset()
        free, _ = self._free.fetchone()
        return frozenset(self._gone) - {int(token) for token in (free or "").split(",") if token}

    def keep(self, before: KeyState, in_use: frozenset[int]) -> KeyState | None:
        """*before*, with the holders of these tokens for longer; ``None`` if a lease is not over.

        That one is released, and the others expired.
        """
        owners = {holder.owner for holder in before.holders if self._tokens[holder.owner] in in_use}
        if owners & self._held(before).keys():
            return None
        longer = self.now + IN_USE
        holders = (replace(h, expires=longer) if h.owner in owners else h for h in before.holders)
        return replace(before, holders=tuple(holders))

    def _held(self, before: KeyState) -> dict[str, Holder]:
        """Whose lease has expired is gone after any operation: whoever is there is new."""
        return {h.owner: h for h in before.holders if h.expires > self.now}

    def verdict(self, verdict: V) -> V:
        """*verdict* with the token that its grant has got."""
        if not isinstance(verdict, Run) or verdict.token != UNNUMBERED or self._granted is None:
            return verdict
        return replace(verdict, token=self._granted.fetchone()[0])

    def _save_slots(self, before: KeyState, state: KeyState, change: Change) -> None:
        is_same = before == state and not change.parked and due(state) == self._due
        self.is_changed = self._has_expired or not is_same
        unread = self._last > max((w.rank for w in before.waiting), default=self._last)
        stays = state.grants or state.cooling or state.hold or state.parked or state.waiting
        self.is_used = bool(stays or unread)
        if not self.is_changed:
            return
        self._save_holders(before, state)
        if self._has_expired:
            self._run(f"DELETE FROM waiting WHERE {_KEY} AND expires<=?", self.now)
        if self.is_used:
            hold = None if state.hold is None else as_json(state.hold)
            slots = as_json(state.grants), as_json(state.cooling), hold
            self._run(_PUT_STATE, *slots, state.parked, state.paused, due(state))
        elif self._has_state:
            self._run(f"DELETE FROM state WHERE {_KEY}")

    def _save_holders(self, before: KeyState, state: KeyState) -> None:
        held = self._held(before)
        for token in self._gone:
            for table in ("holder", "lease"):
                self._run(f"DELETE FROM {table} WHERE {_KEY} AND token=?", token)
        for holder in state.holders:
            if holder.owner not in held:
                values = (getattr(holder, name) for name in HELD)
                self._granted = self._run(_HOLD, *values)
            elif holder != held[holder.owner]:
                token = self._tokens[holder.owner]
                self._run(_PUT_LEASE, token, holder.limit, holder.expires, holder.replaced_by)

    def _drop_entry(self, task: str) -> None:
        self._run(_DROP_ENTRY, task, task)
