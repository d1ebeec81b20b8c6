"""What the fence promises, through each library and on each database that it knows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from celery_dlock import ConfigurationError, StaleFencingToken, fencing
from celery_dlock.fencing.statements import LONGEST_NAME
from tests.fencing.clients import Client
from tests.fencing.conftest import Database, Open
from tests.fencing.faces import faces
from tests.fencing.leases import lease, term

LARGEST = 2**63 - 1

pytestmark = [pytest.mark.once, pytest.mark.parametrize("face", faces())]


@pytest.fixture
def open_another(face: tuple[str, str], database: Database, clients: Open) -> Open:
    server, library = face
    return lambda **options: clients(library, database(server), **options)


@pytest.fixture
def client(open_another: Open) -> Client:
    return open_another()


def stands(client: Client, resource: str) -> tuple[int, str] | None:
    """The token and the owner that the database holds for *resource*."""
    rows = client.execute("SELECT resource, token, owner FROM dlock_fence")
    client.rollback()
    for name, token, owner in rows:
        if _text(name) == resource:
            return token, _text(owner)
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


def write(client: Client, resource: str, token: int, owner: str = "a") -> None:
    with client.transaction():
        client.admit(resource, token, owner)


class TestAdmit:
    def test_a_holder_writes_often_and_a_newer_one_then(self, client: Client, name: str) -> None:
        write(client, name, 7)
        assert stands(client, name) == (7, "a")
        write(client, name, 7)
        with client.transaction():
            client.admit(name, 7)
            client.admit(name, 7)
        assert stands(client, name) == (7, "a")
        write(client, name, 8, "b")
        assert stands(client, name) == (8, "b")

    def test_who_is_too_late_is_refused(self, client: Client, name: str) -> None:
        write(client, name, 8, "b")
        for token, owner in ((7, "a"), (7, "b"), (8, "a"), (1, "c")):
            with pytest.raises(StaleFencingToken) as refused:
                write(client, name, token, owner)
            assert refused.value.args == (name, token, 8)
        with client.transaction():
            client.admit(name, 8, "b")
            with pytest.raises(StaleFencingToken):  # within one transaction as well
                client.admit(name, 7, "a")
        assert stands(client, name) == (8, "b")

    def test_tokens_compare_as_numbers_up_to_the_largest(self, client: Client, name: str) -> None:
        for token, owner in ((9, "a"), (10, "b"), (LARGEST - 1, "c"), (LARGEST, "d")):
            write(client, name, token, owner)
        with pytest.raises(StaleFencingToken) as refused:
            write(client, name, LARGEST - 1, "c")
        assert refused.value.seen == LARGEST
        assert stands(client, name) == (LARGEST, "d")

    def test_a_savepoint_takes_it_back(self, client: Client, name: str) -> None:
        with client.transaction():
            client.admit(name, 7, "a")
            with suppress(ZeroDivisionError), client.nested():
                client.admit(name, 9, "c")
                assert client.once(name)
                raise ZeroDivisionError
            client.admit(name, 8, "b")
            assert client.once(name)
        assert stands(client, name) == (8, "b")

    def test_the_lease_is_shown_whole(self, client: Client, name: str) -> None:
        both = lease(term(f"{name}/1", 5), term(f"{name}/2", 6, slot=1))
        with client.transaction():
            fencing.admit(client.fenced, both)
        assert stands(client, f"{name}/1") == (5, both.owner)
        assert stands(client, f"{name}/2#1") == (6, both.owner)


class TestOnce:
    def test_it_is_new_the_first_time_only(self, open_another: Open, name: str) -> None:
        one, other = open_another(), open_another()
        with one.transaction():
            assert one.once(name) is True
            assert one.once(name) is False
        with other.transaction():
            assert other.once(name) is False
            assert other.once(f"{name}, another") is True
            assert other.once(name, "another shop") is True


class TestMint:
    def test_it_counts_up(self, client: Client, name: str) -> None:
        with client.transaction():
            assert fencing.mint(client.fenced, name, lease(term())) == 1
        with client.transaction():
            assert fencing.mint(client.fenced, name, lease(term(nonce="n2"))) == 2
            assert fencing.mint(client.fenced, name, lease(term(nonce="n2"))) == 3
        assert stands(client, name) == (3, "t:0:0|n2")

    def test_whoever_minted_before_is_too_late(self, client: Client, name: str) -> None:
        tokens = {}
        for nonce in ("earlier", "later"):
            with client.transaction():
                mine = lease(term(nonce=nonce))
                tokens[mine.owner] = fencing.mint(client.fenced, name, mine)
        (earlier, small), (later, large) = tokens.items()
        with pytest.raises(StaleFencingToken):
            write(client, name, small, earlier)
        write(client, name, large, later)
        with pytest.raises(StaleFencingToken):
            write(client, name, large, earlier)


def test_a_rollback_takes_all_of_it_back(client: Client, name: str) -> None:
    write(client, name, 7, "a")
    for _ in range(2):
        client.admit(name, 9, "c")
        assert client.once(name)
        assert fencing.mint(client.fenced, f"{name}, minted", lease(term())) == 1
        client.rollback()
    assert stands(client, name) == (7, "a")
    assert stands(client, f"{name}, minted") is None
    write(client, name, 8, "b")
    assert client.once(name)
    client.commit()
    assert not client.once(name)


NAMES = [
    ("order:a", "order:A"),
    ("order:1", "order:1 "),
    ("order:1", "order:01"),
    ("order:é", "order:e"),
    ("order:é", "order:e\u0301"),
    ("order:ß", "order:ss"),
    ("order:🦀", "order:🦞"),
    ("100%s", "100%d"),
    ("it's", "it''s"),
    ("a\\b", "a\\\\b"),
    (":token", ":owner"),
]


def test_names_are_the_same_only_if_they_are_equal(client: Client, name: str) -> None:
    short = [(f"{name}/{n} {one}", f"{name}/{n} {other}") for n, (one, other) in enumerate(NAMES)]
    room = "x" * (LONGEST_NAME - len(name) - 2)
    for one, other in (*short, (f"{name}{room}é", f"{name}{room}è")):
        with client.transaction():
            for resource in (one, other):
                client.admit(resource, 5, owner=one)
                for effect in ({"resource": resource}, {}):
                    assert client.once(resource, **effect)
                    assert not client.once(resource, **effect)
                assert client.once("effect", resource)
        with pytest.raises(StaleFencingToken), client.transaction():
            client.admit(one, 5, owner=other)
        assert stands(client, other) == (5, one)


def asks(client: Client, name: str) -> tuple[Callable[[], object], ...]:
    """All that can be asked of the fence."""
    return (
        lambda: fencing.admit(client.fenced, resource=name, fencing_token=1, owner="a"),
        lambda: fencing.once(client.fenced, name, resource="shop"),
        lambda: fencing.mint(client.fenced, name, lease(term())),
    )


def test_without_a_transaction_all_is_refused(open_another: Open, name: str) -> None:
    client = open_another(autocommit=True)
    for ask in asks(client, name):
        with pytest.raises(ConfigurationError, match=r"transaction"):
            ask()
    for table in ("dlock_fence", "dlock_once"):
        rows = client.execute(f"SELECT * FROM {table}")
        assert name not in {_text(row[0]) for row in rows}


def test_a_missing_table_is_said_with_each_way_to_make_it(
    face: tuple[str, str], without_tables: Database, clients: Open, name: str
) -> None:
    server, library = face
    client = clients(library, without_tables(server))
    for ask in asks(client, name):
        client.begin()
        with pytest.raises(ConfigurationError) as missing:
            ask()
        client.rollback()
        for way in (
            "'celery_dlock.fencing' to INSTALLED_APPS",
            "fencing.create_table(op.get_bind())",
            "CREATE TABLE IF NOT EXISTS dlock_fence",
            "CREATE TABLE IF NOT EXISTS dlock_once",
        ):
            assert way in str(missing.value)


@pytest.fixture(scope="module")
def without_tables(empty_database: Database) -> Database:
    made: dict[str, str] = {}

    def find(server: str) -> str:
        if server not in made:
            made[server] = empty_database(server)
        return made[server]

    return find
