"""The tables that all stores in SQL have, in the words of SQLite."""

from __future__ import annotations

_AT = "prefix TEXT NOT NULL, key TEXT NOT NULL"
_OF_TASK = f"{_AT}, task TEXT NOT NULL"

TABLES = (
    f"""CREATE TABLE waiting (
        {_OF_TASK}, mode TEXT NOT NULL, rank INTEGER NOT NULL, arrived INTEGER NOT NULL,
        expires INTEGER, gives_up INTEGER, ordered BOOLEAN NOT NULL,
        name TEXT NOT NULL, entry INTEGER NOT NULL, keyset TEXT NOT NULL, due INTEGER NOT NULL,
        PRIMARY KEY (prefix, key, task)) WITHOUT ROWID""",
    "CREATE INDEX waiting_rank ON waiting (prefix, key, rank)",
    "CREATE INDEX waiting_expires ON waiting (prefix, key, expires) WHERE expires IS NOT NULL",
    # Messages of tasks that wait or were woken, apart from the queue that every operation reads.
    # With a rowid: without one, what is larger than a kilobyte takes a page of 4 kB more.
    f"""CREATE TABLE message (
        {_OF_TASK}, body BLOB NOT NULL, PRIMARY KEY (prefix, key, task))""",
    "CREATE INDEX message_task ON message (prefix, task)",
    # Messages that wait for a person: their runs were lost, or nobody can read them.
    f"""CREATE TABLE dead (
        {_OF_TASK}, mode TEXT NOT NULL, cause TEXT NOT NULL, at INTEGER NOT NULL,
        body BLOB NOT NULL, PRIMARY KEY (prefix, key, task)) WITHOUT ROWID""",
    "CREATE INDEX dead_at ON dead (prefix, at, key, task)",
    "CREATE INDEX dead_task ON dead (prefix, task)",
    # What is remembered of a task for a while: lost runs, or with lost = 0 that it is done.
    f"""CREATE TABLE past (
        {_OF_TASK}, done INTEGER NOT NULL, lost INTEGER NOT NULL, until INTEGER NOT NULL,
        PRIMARY KEY (prefix, key, task, done)) WITHOUT ROWID""",
    "CREATE INDEX past_until ON past (until)",
    # The largest token that has written beside a key.
    f"""CREATE TABLE bar (
        {_AT}, token INTEGER NOT NULL, PRIMARY KEY (prefix, key)) WITHOUT ROWID""",
    f"""CREATE TABLE note (
        {_AT}, name TEXT NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (prefix, key, name)) WITHOUT ROWID""",
    # What is put under a name for a while, by compare-and-set.
    """CREATE TABLE swap (
        prefix TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL, until INTEGER NOT NULL,
        PRIMARY KEY (prefix, name)) WITHOUT ROWID""",
    "CREATE INDEX swap_until ON swap (until)",
)
