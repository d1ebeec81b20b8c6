"""What the server keeps a plan of: the functions of the schema.

To plan a statement takes longer than to execute it, and behind a pooler none can be prepared. Of
the statements of a function each connection of the server keeps the plans.
"""

from __future__ import annotations

from dataclasses import fields

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import WINDOW, Holder, Waiting
from celery_dlock.stores.postgresql.connection import LOCK_TIMEOUT
from celery_dlock.stores.sql.rows import BY_TASK, STATE, columns

#: The class of our advisory locks, "dlck": an application that uses the form with two numbers must
#: not use this one.
LOCK_CLASS = 0x646C636B

#: The fields of a holder that are given to its row; its token is the row's own.
HELD = [field.name for field in fields(Holder) if field.name != "token"]

_AT = "prefix = p_prefix AND key = p_key"

#: The time on the server, unless a clock replaces it.
NOW = "coalesce({clock}, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
_NOW = NOW.format(clock="p_clock")

#: The number of the lock for it; those of keys are by chance.
_RAISE_LOCK = 0

#: Microseconds that the numbers may be behind the clock: of a server that takes over without the
#: sequence, as one of a logical replication or of tables made anew, the first is larger than all of
#: before if it comes later than that.
BEHIND = SECOND

# Only one transaction at a time raises the sequence, or it might be set back. Nobody waits for it.
NUMBER = f"""CREATE FUNCTION dlock.next_number()
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_number BIGINT := nextval('dlock.number');
    v_now BIGINT := {NOW.format(clock="NULL::bigint")};
BEGIN
    IF v_number < v_now - {BEHIND} THEN
        IF pg_try_advisory_xact_lock({LOCK_CLASS}, {_RAISE_LOCK}) THEN
            IF (SELECT last_value FROM dlock.number) < v_now - {BEHIND} THEN
                PERFORM setval('dlock.number', v_now);
            END IF;
        END IF;
        v_number := nextval('dlock.number');
    END IF;
    RETURN v_number;
END $$"""

# Each statement sees what was committed before it began, so that after the lock misses nothing;
# where the role's default is another isolation, nothing is done, and the longer way says which.
# Rows are looked for by their keys, also where an estimate of a small table speaks against that.
_AT_FREE_KEY = f"""CREATE FUNCTION dlock.{{name}}
RETURNS {{returns}} LANGUAGE plpgsql
SET enable_seqscan = off SET lock_timeout = '{LOCK_TIMEOUT}' AS $$
DECLARE
    v_now BIGINT;
    v_token BIGINT;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed'
        OR current_setting('transaction_read_only') = 'on'
    THEN
        RETURN NULL;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF NOT pg_try_advisory_xact_lock({LOCK_CLASS}, p_lock) THEN
        RETURN NULL;
    END IF;
    v_now := {_NOW};
    IF EXISTS (SELECT FROM dlock.state WHERE {_AT})
        OR EXISTS (SELECT FROM dlock.past WHERE {_AT} AND task = p_task)
        OR EXISTS (SELECT FROM dlock.holder WHERE {_AT}{{others}})
    THEN
        RETURN NULL;
    END IF;
    {{body}}
END $$"""

# See celery_dlock.core.plain for what a plain claim has, and leaves.
_TAKE = _AT_FREE_KEY.format(
    name="""take(p_clock BIGINT, p_lock INT, p_prefix TEXT, p_key TEXT, p_task TEXT, p_nonce TEXT,
    p_mode TEXT, p_limit BIGINT, p_ttl BIGINT, p_name TEXT, p_where TEXT)""",
    returns="BIGINT",
    others="",
    body="""INSERT INTO dlock.holder (prefix, key, task, nonce, mode, "limit", slot, since, expires,
        name, "where", cools)
    VALUES (p_prefix, p_key, p_task, p_nonce, p_mode, p_limit, 0, v_now, v_now + p_ttl,
        p_name, p_where, 0)
    RETURNING token INTO v_token;
    RETURN v_token;""",
)

_RELEASE = _AT_FREE_KEY.format(
    name="""release(p_clock BIGINT, p_lock INT, p_prefix TEXT, p_key TEXT, p_task TEXT,
    p_nonce TEXT, p_done_ttl BIGINT)""",
    returns="BOOLEAN",
    others=" AND (task, nonce) <> (p_task, p_nonce)",
    body=f"""DELETE FROM dlock.holder WHERE ctid = (SELECT ctid FROM dlock.holder
        WHERE {_AT} AND cools = 0 AND replaced_by IS NULL
        FOR UPDATE SKIP LOCKED)
    RETURNING token INTO v_token;
    IF v_token IS NULL THEN
        RETURN NULL;
    END IF;
    DELETE FROM dlock.lease WHERE {_AT} AND token = v_token;
    IF p_done_ttl > 0 THEN
        INSERT INTO dlock.past (prefix, key, task, done, lost, until)
        VALUES (p_prefix, p_key, p_task, 1, 0, v_now + p_done_ttl);
    END IF;
    RETURN true;""",
)

_WITH_LEASES = (
    f"dlock.holder AS h LEFT JOIN dlock.lease AS l USING (prefix, key, token) WHERE {_AT}"
)

# All that the rules go by, in short.
_STAMP = f"""CREATE FUNCTION dlock.stamp(p_prefix TEXT, p_key TEXT, p_task TEXT)
RETURNS TEXT LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN concat_ws('|', coalesce((SELECT version FROM dlock.state WHERE {_AT}), 0),
        coalesce((SELECT string_agg(concat_ws(':', token, l."limit", l.expires, l.replaced_by), ','
            ORDER BY token) FROM {_WITH_LEASES}), ''),
        (SELECT string_agg(concat_ws(':', done, lost, until), ',' ORDER BY done)
            FROM dlock.past WHERE {_AT} AND task = p_task));
END $$"""

_HELD = ", ".join(
    {
        "limit": 'coalesce(l."limit", h."limit") AS "limit"',
        "expires": "coalesce(l.expires, h.expires) AS expires",
        "replaced_by": "coalesce(l.replaced_by, h.replaced_by) AS replaced_by",
    }.get(name, f'"{name}"')
    for name in HELD
)

# Those who hold the key, as a list of objects.
_HOLDERS = f"""CREATE FUNCTION dlock.holders(p_prefix TEXT, p_key TEXT)
RETURNS JSON LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(json_agg(held), '[]')
        FROM (SELECT token, {_HELD} FROM {_WITH_LEASES} ORDER BY token) AS held);
END $$"""

_LIVE = f"dlock.waiting WHERE {_AT} AND (expires IS NULL OR expires > v_now)"
_ENTRY = f"SELECT {', '.join(columns(Waiting))} FROM {_LIVE}"

# The bounded part of a key's state that an operation may see.
# Each task is looked for by itself, for what is remembered of all others of the key may be much.
_LOAD = f"""CREATE FUNCTION dlock.load(p_clock BIGINT, p_prefix TEXT, p_key TEXT, p_task TEXT,
    p_successor TEXT)
RETURNS JSON LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_now BIGINT := {_NOW};
BEGIN
    RETURN (SELECT json_build_array(v_now, dlock.stamp(p_prefix, p_key, p_task),
        (SELECT rank FROM {_LIVE} ORDER BY rank DESC LIMIT 1),
        EXISTS (SELECT FROM dlock.waiting WHERE {_AT} AND expires <= v_now),
        (SELECT json_build_array({STATE}) FROM dlock.state WHERE {_AT}),
        dlock.holders(p_prefix, p_key),
        (SELECT coalesce(json_agg(waits ORDER BY rank), '[]') FROM (
            ({_ENTRY} ORDER BY rank LIMIT {WINDOW})
            UNION ({_ENTRY} AND {BY_TASK.replace("?", "p_task")})
            UNION ({_ENTRY} AND {BY_TASK.replace("?", "p_successor")})) AS waits),
        (SELECT coalesce(json_agg(json_build_array(past.task, done, lost)), '[]')
            FROM (SELECT task FROM dlock.holder WHERE {_AT} UNION SELECT p_task) AS asked,
            LATERAL (SELECT task, done, lost FROM dlock.past
                WHERE {_AT} AND task = asked.task AND until > v_now OFFSET 0) AS past)));
END $$"""

FUNCTIONS = (_TAKE, _RELEASE, _STAMP, _HOLDERS, _LOAD)
