"""The store on a PostgreSQL server: beside the application's own tables, in a schema of its own.

The rules run here, on what one flight has read, and a second flight writes what has changed if that
still stands. No lock is held between flights, and nobody waits in the server.

What it does not give: a grant that outlives the loss of its server's last commits. A standby that
is promoted without them does not know the holder, and issues the same token again; so a failover
has to be to a synchronous one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, cast

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.lease import SECOND, HolderRow
from celery_dlock.core.operations import Enter, Leave, Operation, Reap
from celery_dlock.core.plain import ends_plainly, is_done, is_plain
from celery_dlock.core.state import Claim, Left, NotHeld, Renewed, RenewVerdict, Replaced, Unknown
from celery_dlock.core.turns import WAKE_AGAIN_LAST
from celery_dlock.errors import BackendUnavailable
from celery_dlock.forking import PerProcess
from celery_dlock.stores.base import BackendOptions, Guarantee, Reply, Swept, Trait, Wake
from celery_dlock.stores.consensus.commit import KeyMutexes
from celery_dlock.stores.postgresql.connection import (
    Connections,
    Lost,
    Overtaken,
    address_of,
    stored_text,
)
from celery_dlock.stores.postgresql.flight import (
    INSTANT,
    LOCKED,
    NOW,
    Flight,
    WritingFlight,
    lock_of,
)
from celery_dlock.stores.postgresql.rows import (
    UNNUMBERED,
    PostgresqlKeyRows,
    release_alone,
    take_free,
)
from celery_dlock.stores.postgresql.schema import SCHEMA, grants, prepare, table_version
from celery_dlock.stores.sql.rows import SWEEP, Database, SqlDialect, put_notes, raise_bar
from celery_dlock.stores.sql.store import SqlBackend
from celery_dlock.stores.unreadable import UnreadableKey, naming

logger = logging.getLogger("celery_dlock")

T = TypeVar("T")
V = TypeVar("V")

#: So many keys are remembered as used.
REMEMBERED = 10_000

#: So often a renewal is asked for whose key is in use, after so many seconds at most.
RENEWALS = 20
PAUSE = 0.02

#: So many rows whose time is over a sweep deletes of a table.
TIDY = 1_000

_IN_USE = (
    "{key!r} is not released: a transaction that has passed the fence for it is still open. End it "
    "before the task or the block ends"
)

_OVER = """DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table}
    WHERE until <= {now} ORDER BY until LIMIT {limit} FOR UPDATE SKIP LOCKED))"""

_DUE = f"SELECT key FROM state WHERE prefix=? AND due <= {INSTANT} ORDER BY due LIMIT ?"
_NEXT = f"SELECT min(due) - {NOW} FROM state WHERE prefix=?"

_STANDS = f"SELECT body FROM swap WHERE prefix=? AND name=? AND until > {NOW}"
_SWAP = f"""INSERT INTO swap (prefix, name, body, until) VALUES (?, ?, ?, {NOW} + ?) ON CONFLICT
    (prefix, name) DO UPDATE SET body=excluded.body, until=excluded.until"""

# The rule of celery_dlock.core.machine.renew, for many keys at once.
_RENEW = f"""WITH clock AS MATERIALIZED (SELECT {NOW} AS now),
asked AS MATERIALIZED (SELECT claim.*, lock = ANY({LOCKED}) AS locked FROM json_to_recordset(?)
    AS claim (number BIGINT, key TEXT, task TEXT, nonce TEXT, ttl BIGINT, lock INT)),
found AS MATERIALIZED (SELECT number, asked.key, h.token, ttl,
    coalesce(l.expires, h.expires) AS ends,
    coalesce(l.replaced_by, h.replaced_by, '') AS replaced_by
    FROM asked JOIN holder AS h ON h.prefix=? AND (h.key, h.task, h.nonce)
        = (asked.key, asked.task, asked.nonce)
    LEFT JOIN lease AS l ON l.prefix=h.prefix AND l.key=h.key AND l.token=h.token WHERE locked),
renewed AS (INSERT INTO lease (prefix, key, token, expires)
    SELECT ?, key, token, greatest(ends, now + ttl) FROM found, clock
    WHERE ends > now AND replaced_by = ''
    ON CONFLICT (prefix, key, token) DO UPDATE SET expires=excluded.expires
    RETURNING token, expires)
SELECT asked.number, locked, renewed.expires, CASE WHEN ends > now THEN replaced_by ELSE '' END
FROM clock, asked LEFT JOIN found USING (number) LEFT JOIN renewed USING (token)"""


class PostgresqlBackend(SqlBackend):
    """``postgresql://[user[:password]@]host[:port]/database``, with libpq's options in the query.

    It makes the schema ``dlock`` in that database, if it is not there.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset(Trait)
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 250_000_000  # twice that goes over the line, of 1 GB at most
    dialect = SqlDialect(
        in_use=("state", "holder"), forget=_OVER.format(table="past", now="?", limit=SWEEP)
    )

    def __init__(self, connect: Callable[[], Connections], options: BackendOptions) -> None:
        super().__init__(options)
        self._clock: Callable[[], int | None] = options.clock or (lambda: None)
        self._connections = PerProcess(connect)
        self._mutexes = KeyMutexes()
        self._used: set[str] = set()

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        address, where = address_of(url, options.driver)
        return cls(lambda: Connections(address, where, prepare), options)

    @classmethod
    def tables(cls, role: str | None = None) -> Sequence[str]:
        return SCHEMA if role is None else (*SCHEMA, *grants(role))

    def missing(self) -> str:
        connections = self._connections()
        if connections.is_prepared or table_version(connections.fly_unprepared) is not None:
            return ""
        return (
            "the database of the lock store has no schema dlock: the first worker makes it, or "
            "`celery -A … dlock init`"
        )

    @contextmanager
    def reading(self) -> Iterator[Database]:
        yield Flight(self._connections())

    def apply(self, operation: Operation[V]) -> Reply[V]:
        """Where the answer is lost, it is asked for again once, at a new connection."""
        try:
            return self._apply(operation)
        except Lost:
            return self._apply(operation.again())

    def _apply(self, operation: Operation[V]) -> Reply[V]:
        # Those whose turn it is would wait for a release that waits for its turn.
        key, first = operation.claim.key, isinstance(operation, Leave)
        return self._mutexes.until_committed(key, partial(self._attempt, operation), first=first)

    def _attempt(self, operation: Operation[Any]) -> Reply[Any] | None:
        """``None`` if somebody else was faster."""
        try:
            with naming(operation.claim.key):
                return self._at_free_key(operation) or self._at_key(operation)
        except Overtaken:
            return None

    def _at_free_key(self, operation: Operation[Any]) -> Reply[Any] | None:
        """On the chance that nobody else uses the key."""
        claim = operation.claim
        if claim.key in self._used:
            return None
        flight, clock = self._writing(claim.key), self._clock()
        match operation:
            case Enter() if is_plain(claim):
                run = take_free(flight, self._prefix, claim, clock)
                return None if run is None else Reply(run)
            case Leave(outcome=outcome) if ends_plainly(claim, outcome):
                if release_alone(flight, self._prefix, claim, outcome, clock):
                    return Reply(Left(is_done(claim, outcome)))
            case _:
                pass
        return None

    def _at_key(
        self, operation: Operation[V], in_use: frozenset[int] = frozenset()
    ) -> Reply[V] | None:
        claim = operation.claim
        rows = self._rows(Flight(self._connections()), claim.key)
        rows.in_use = in_use
        before = rows.load(operation)
        step = operation.apply(before, rows.now, UNNUMBERED)
        flight = self._writing(claim.key)
        guard = rows.write_to(flight, claim.task, before, step.state)
        messages = rows.ask_messages(step)
        change = rows.save(operation, before, step)
        others = any(holder.owner != claim.owner for holder in step.state.holders)
        self._note(claim, used=others or rows.is_used)
        if not rows.is_changed and not step.wakes:
            return Reply(step.verdict)
        _, stood = guard.fetchone()
        if not stood:
            return None
        if tokens := rows.found_in_use():
            if tokens <= in_use:
                raise BackendUnavailable(_IN_USE.format(key=claim.key))
            return self._at_key(operation, in_use | tokens)
        bodies = messages.fetchall() if messages else []
        wakes = rows.wakes(step, change, rows.message_of(operation, before), bodies)
        return Reply(rows.verdict(step.verdict), wakes)

    def _note(self, claim: Claim, *, used: bool) -> None:
        """A key that is used is not worth the chance that it is free."""
        if not used:
            self._used.discard(claim.key)
            return
        if len(self._used) >= REMEMBERED:
            self._used.clear()
        self._used.add(claim.key)

    def row_of(self, claim: Claim) -> HolderRow:
        texts = self._prefix, claim.key, claim.task, claim.nonce
        return HolderRow(self._connections().store(), *map(stored_text, texts))

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        """Those whose key somebody else is writing to just then are asked for again."""
        verdicts: dict[int, RenewVerdict] = {}
        for _ in range(RENEWALS):
            self._renew(claims, verdicts)
            if len(verdicts) == len(claims):
                break
            time.sleep(CHANCE.uniform(0, PAUSE))
        return [verdicts.get(number, Unknown()) for number in range(len(claims))]

    def _renew(self, claims: Sequence[Claim], verdicts: dict[int, RenewVerdict]) -> None:
        """Add the answers of one flight to *verdicts*, by the number of the claim.

        Of several claims of one holder it asks for the first that is not answered.
        """
        asked = {
            (claim.key, claim.owner): self._asked(number, claim)
            for number, claim in reversed(list(enumerate(claims)))
            if number not in verdicts
        }
        rows = list(asked.values())
        flight = WritingFlight(self._connections(), {row["lock"] for row in rows})
        values = self._clock(), json.dumps(rows), self._prefix, self._prefix
        for number, locked, expires, replaced_by in flight.write(_RENEW, values).fetchall():
            if locked:
                renewed = NotHeld() if expires is None else Renewed(expires)
                verdicts[number] = Replaced(replaced_by) if replaced_by else renewed

    def _asked(self, number: int, claim: Claim) -> dict[str, Any]:
        names = {name: stored_text(getattr(claim, name)) for name in ("key", "task", "nonce")}
        return {"number": number, **names, "ttl": claim.ttl, "lock": self._lock(claim.key)}

    def sweep(self, limit: int = 100) -> Swept:
        flight, clock = WritingFlight(self._connections(), ()), self._clock()
        flight.guard("true")
        for table in ("past", "swap"):
            over = _OVER.format(table=table, now=INSTANT, limit=TIDY)
            flight.execute(over, (clock,))
        due = flight.write(_DUE, (self._prefix, clock, limit))
        later = flight.write(_NEXT, (clock, self._prefix))
        keys = [key for (key,) in due.fetchall()]
        wakes = tuple(wake for key in keys for wake in self._reap_or_put_off(key))
        if keys:
            later = Flight(self._connections()).execute(_NEXT, (self._clock(), self._prefix))
        (left,) = later.fetchone()
        return Swept(wakes, None if left is None else max(0, left) / SECOND)

    def _reap_or_put_off(self, key: str) -> tuple[Wake, ...]:
        """One key that cannot be read must not keep the others waiting.

        Nor one at which somebody else is, be it another sweep: it stays due if it is.
        """
        try:
            reply = self._attempt(Reap(key))
        except UnreadableKey:
            logger.exception("nobody is woken for %r", key)
            flight = self._writing(key)
            flight.guard("true")
            due = f"UPDATE state SET due = {NOW} + ? WHERE prefix=? AND key=?"
            flight.execute(due, (self._clock(), WAKE_AGAIN_LAST, self._prefix, key))
            flight.send()
            return ()
        return () if reply is None else reply.wakes

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        def attempt() -> bool | None:
            flight, at = WritingFlight(self._connections(), {self._lock(key)}), (self._prefix, key)
            larger = "SELECT FROM bar WHERE prefix=? AND key=? AND token > ?"
            guard = flight.guard(f"NOT EXISTS ({larger})", (*at, token))
            raise_bar(flight, *at, token)
            put_notes(flight, *at, notes)
            locked, written = guard.fetchone()
            return written if locked else None

        return self._until(key, attempt)

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        def attempt() -> tuple[bytes | None] | None:
            at, clock = (self._prefix, name), self._clock()
            flight = WritingFlight(self._connections(), {lock_of("swap", *at)})
            same = f"({_STANDS}) IS NOT DISTINCT FROM ?::bytea"
            guard = flight.guard(same, (*at, clock, was))
            if becomes is None:
                flight.execute("DELETE FROM swap WHERE prefix=? AND name=?", at)
            else:
                flight.execute(_SWAP, (*at, becomes, clock, stays))
            stands = flight.execute(_STANDS, (*at, clock))
            if not guard.fetchone()[0]:
                return None
            return stands.fetchone() or (None,)

        (body,) = self._until(name, attempt)
        return body

    def _until(self, key: str, attempt: Callable[[], T | None]) -> T:
        def again() -> T | None:
            try:
                return attempt()
            except Overtaken:
                return None

        return self._mutexes.until_committed(key, again)

    def now(self) -> int:
        answer = Flight(self._connections()).execute(f"SELECT {NOW}", (self._clock(),))
        return int(answer.fetchone()[0])

    def close(self) -> None:
        """Close the idle connection; the next operation makes a new one."""
        self._connections().close()

    def _writing(self, key: str) -> WritingFlight:
        """For an operation, which knows what to ask if the answer was lost."""
        return WritingFlight(self._connections(), {self._lock(key)}, repeats=False)

    def _lock(self, key: str) -> int:
        return lock_of(self._prefix, key)

    def _rows(self, db: Database, key: str, now: int = 0) -> PostgresqlKeyRows:
        return PostgresqlKeyRows(cast("Flight", db), self.dialect, self._prefix, key, self._clock())
