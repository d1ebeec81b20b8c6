"""The store on a PostgreSQL server: beside the application's own tables, in a schema of its own.

The rules run here, on what one flight has read, and a second flight writes what has changed if that
still stands. No lock is held between flights, and nobody waits in the server.

What it does not give: a grant that outlives the loss of its server's last commits. A standby that
is promoted without them does not know the holder, and issues the same token again; so a failover
has to be to a synchronous one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Self, TypeVar, cast

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.lease import HolderRow
from celery_dlock.core.operations import Enter, Leave, Operation, Reap
from celery_dlock.core.plain import ends_plainly, is_done, is_plain
from celery_dlock.core.state import (
    Claim,
    KeyState,
    Left,
    Mode,
    NotHeld,
    Renewed,
    RenewVerdict,
    Replaced,
    Run,
    Unknown,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.forking import PerProcess
from celery_dlock.stores.base import BackendOptions, Guarantee, InUse, Reply, Trait, Wake
from celery_dlock.stores.consensus.commit import KeyMutexes, Overtaken, UsedKeys
from celery_dlock.stores.postgresql.connection import (
    Address,
    Connections,
    Lost,
    address_of,
    stored_text,
)
from celery_dlock.stores.postgresql.flight import (
    INSTANT,
    LOCKED,
    NOW,
    Flight,
    WritingFlight,
    call,
    lock_of,
)
from celery_dlock.stores.postgresql.rows import UNNUMBERED, PostgresqlKeyRows
from celery_dlock.stores.postgresql.schema import SCHEMA, grants, prepare, table_version
from celery_dlock.stores.sql.rows import Database, KeyRows, SqlDialect
from celery_dlock.stores.sql.store import RAISE_BAR, SqlBackend
from celery_dlock.stores.unreadable import naming

V = TypeVar("V")

#: So often a renewal is asked for whose key is in use, after so many seconds at most.
RENEWALS = 20
PAUSE = 0.02

#: So many rows whose time is over a sweep deletes of a table.
TIDY = 1_000

_IN_USE = (
    "{key!r} is not released: a transaction that has passed the fence for it is still open. End it "
    "before the task or the block ends"
)

_STANDS = f"SELECT body FROM swap WHERE prefix=? AND name=? AND until > {NOW}"

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
        in_use=("state", "holder"),
        now=INSTANT,
        over="""DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table}
    WHERE until <= {now} ORDER BY until LIMIT {limit} FOR UPDATE SKIP LOCKED))""",
    )

    @classmethod
    def _address_of(cls, url: str, driver: Mapping[str, Any]) -> Address:
        return address_of(url, driver)

    def __init__(self, connect: Callable[[], Connections], options: BackendOptions) -> None:
        super().__init__(options)
        self._now = options.clock or (lambda: None)
        self._connections = PerProcess(connect)
        self._mutexes = KeyMutexes()
        self._used = UsedKeys()

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        address = partial(cls._address_of, url, options.driver)
        with suppress(BackendUnavailable):  # whoever gives the password
            address()  # a wrong one is refused before the first lock
        return cls(lambda: Connections(address, prepare), options)

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
            return self._applied(operation)
        except Lost:
            return self._applied(operation.again())

    def _applied(self, operation: Operation[V]) -> Reply[V]:
        return self._mutexes.until_applied(operation, partial(self._attempt, operation))

    def _attempt(self, operation: Operation[Any]) -> Reply[Any] | None:
        """``None`` if somebody else was faster."""
        with naming(operation.claim.key):
            return self._at_free_key(operation) or self._at_key(operation)

    def _at_free_key(self, operation: Operation[Any]) -> Reply[Any] | None:
        """On the chance that nobody else uses the key."""
        claim = operation.claim
        if claim.key in self._used:
            return None
        match operation:
            case Enter() if is_plain(claim):
                terms = claim.mode, claim.limit, claim.ttl, claim.name, claim.where
                if token := self._called("take", claim, *terms):
                    return Reply(Run(0, 0 if claim.mode is Mode.SHARED else token))
            case Leave(outcome=outcome) if ends_plainly(claim, outcome):
                done = is_done(claim, outcome)
                if self._called("release", claim, claim.done_ttl if done else 0):
                    return Reply(Left(done))
            case _:
                pass
        return None

    def _called(self, function: str, claim: Claim, *values: object) -> Any:
        """What a function of the schema returns of the key of *claim*."""
        key = claim.key
        asked = self._now(), self._lock(key), self._prefix, key, claim.task, claim.nonce
        return call(self._connections(), function, (*asked, *values))

    def _at_key(self, operation: Operation[V]) -> Reply[V] | None:
        rows = self._rows(Flight(self._connections()), operation.claim.key)
        return self._change(operation, rows, rows.load(operation))

    def _change(
        self, operation: Operation[V], rows: PostgresqlKeyRows, before: KeyState
    ) -> Reply[V] | None:
        claim = operation.claim
        step = operation.apply(before, rows.now, UNNUMBERED)
        flight = self._writing(claim.key)
        guard = rows.write_to(flight, claim.task, before, step.state)
        messages = rows.ask_messages(step)
        change = rows.save(operation, before, step)
        others = any(holder.owner != claim.owner for holder in step.state.holders)
        self._used.note(claim.key, used=others or rows.is_used)
        if not rows.is_changed and not step.wakes:
            return Reply(step.verdict)
        _, stood = guard.fetchone()
        if not stood:
            return None
        if tokens := rows.found_in_use():
            kept = rows.keep(before, tokens)
            if kept is None:
                raise InUse(_IN_USE.format(key=claim.key))
            return self._change(operation, rows, kept)
        bodies = messages.fetchall() if messages else []
        wakes = rows.wakes(step, change, rows.message_of(operation, before), bodies)
        return Reply(rows.verdict(step.verdict), wakes)

    def row_of(self, claim: Claim) -> HolderRow:
        texts = self._prefix, claim.key, claim.task, claim.nonce
        return HolderRow(self._connections().is_store, *map(stored_text, texts))

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
        values = self._now(), json.dumps(rows), self._prefix, self._prefix
        for number, locked, expires, replaced_by in flight.execute(_RENEW, values).fetchall():
            if locked:
                renewed = NotHeld() if expires is None else Renewed(expires)
                verdicts[number] = Replaced(replaced_by) if replaced_by else renewed

    def _asked(self, number: int, claim: Claim) -> dict[str, Any]:
        names = {name: stored_text(getattr(claim, name)) for name in ("key", "task", "nonce")}
        return {"number": number, **names, "ttl": claim.ttl, "lock": self._lock(claim.key)}

    @contextmanager
    def sweeping(self) -> Iterator[Database]:
        flight = WritingFlight(self._connections(), ())
        flight.guard("true")
        for table in ("past", "swap"):
            self.dialect.delete_over(flight, table, self._now(), TIDY)
        yield flight

    @contextmanager
    def writing(self, key: str) -> Iterator[KeyRows]:
        flight = self._writing(key)
        flight.guard("true")
        yield self._rows(flight, key)
        flight.send()

    def reap_due(self, key: str) -> tuple[Wake, ...]:
        """If somebody else is at *key*, be it another sweep, it stays due if it is."""
        with suppress(Overtaken):
            reply = self._attempt(Reap(key))
            return () if reply is None else reply.wakes
        return ()

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        at = (self._prefix, key)
        larger = "SELECT FROM bar WHERE prefix=? AND key=? AND token > ?"

        def attempt() -> bool | None:
            flight = WritingFlight(self._connections(), {lock_of(*at)})
            guard = flight.guard(f"NOT EXISTS ({larger})", (*at, token))
            flight.execute(RAISE_BAR, (*at, token))
            self.put_notes(flight, key, notes)
            locked, written = guard.fetchone()
            return written if locked else None

        return self._mutexes.until_committed(key, attempt)

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        at = (self._prefix, name)

        def attempt() -> tuple[bytes | None] | None:
            clock, flight = self._now(), WritingFlight(self._connections(), {lock_of("swap", *at)})
            same = f"({_STANDS}) IS NOT DISTINCT FROM ?::bytea"
            guard = flight.guard(same, (*at, clock, was))
            self.put_swap(flight, name, becomes, clock, stays)
            stands = flight.execute(_STANDS, (*at, clock))
            locked, _ = guard.fetchone()
            return (stands.fetchone() or (None,)) if locked else None

        (body,) = self._mutexes.until_committed(name, attempt)
        return body

    def now(self) -> int:
        answer = Flight(self._connections()).execute(f"SELECT {NOW}", (self._now(),))
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
        return PostgresqlKeyRows(cast("Flight", db), self.dialect, self._prefix, key, self._now())
