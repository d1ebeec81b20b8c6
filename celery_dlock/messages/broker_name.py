"""By what name a broker goes: one for all ways to spell its address, another for any other broker.

It is kept with each message that waits, and logged. So it has no user and no password: publishers
and workers may log in by different ones, and what waits under an old password still belongs to this
broker. What a program cannot see (a second address, a name that leads elsewhere now) is said with
``dlock_broker``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, quote

from kombu.utils.url import url_to_parts

from celery_dlock.errors import ConfigurationError

#: Transport options that lead to other queues on one server, and what each is if it is not said.
_LEADS_ELSEWHERE: Mapping[str, str] = {
    "global_keyprefix": "",
    "queue_name_prefix": "",
    "master_name": "",
    "queue_tablename": "kombu_queue",
    "message_tablename": "kombu_message",
    "default_database": "kombu_default",
    "messages_collection": "messages",
}

#: What a transport takes where the URL names no virtual host or database.
_USUAL_VHOST: Mapping[str, str] = {
    "amqp": "/",
    "redis": "0",
    "pgmq": "postgres",
    "mongodb": "kombu_default",
}
_USUAL_PORT: Mapping[str, int] = {"mongodb": 27017, "postgresql": 5432, "mysql": 3306}

#: What a URL of a database may name in its query and not before it.
_IN_QUERY = ("host", "port", "dbname", "service", "unix_socket")

_LOOPBACK = ("127.0.0.1", "::1")


def broker_name(connection: Any) -> str:
    """The name of the broker that *connection*, which is not used for anything else, leads to.

    Raises :exc:`~celery_dlock.ConfigurationError` where it cannot be told.
    """
    if "conn_string" in connection.transport_options:
        raise ConfigurationError("conn_string hides which broker it is: name it with dlock_broker")
    kind = _kind(connection)
    options = dict(_options(kind, connection))
    try:
        places = ",".join(sorted(set(_places(kind, connection, options))))
    except ValueError:  # which may quote it, with the password
        why = "broker_url cannot be read: name the broker with dlock_broker"
        raise ConfigurationError(why) from None
    query = "&".join(f"{name}={quote(value)}" for name, value in sorted(options.items()))
    return f"{kind}://{places}{'?' if query else ''}{query}"


def _kind(connection: Any) -> str:
    kind: str = connection.transport.driver_type
    return str(connection.transport_cls).lower() if kind == "N/A" else kind


def _options(kind: str, connection: Any) -> Iterator[tuple[str, str]]:
    transport_options = connection.transport_options
    for name, usual in _LEADS_ELSEWHERE.items():
        if str(transport_options.get(name) or usual) != usual:
            yield name, str(transport_options[name])
    if kind == "filesystem":
        yield "folder", os.path.realpath(transport_options.get("data_folder_out", "data_out"))
    if kind == "sqs":
        yield "region", transport_options.get("region") or _region_of_this_host()


def _region_of_this_host() -> str:
    """As kombu finds it."""
    boto3: Any = import_module("boto3")  # there, where that transport is
    return boto3.Session().region_name or "us-east-1"


def _places(kind: str, connection: Any, options: Mapping[str, str]) -> Iterator[str]:
    """Each server that kombu may come to, with the database or virtual host there."""
    hostname = connection.hostname or ""
    if connection.transport.can_parse_url or "://" in hostname:
        yield from _of_url(kind, connection)
    elif "master_name" in options:
        yield from _sentinels(kind, connection)
    else:
        yield _place(kind, connection)
        for url in connection.alt[1:]:
            connection.switch(url)  # what a URL leaves out is taken from the one before
            yield _place(kind, connection)


def _place(kind: str, connection: Any) -> str:
    port = connection.port or connection.transport.default_connection_params.get("port")
    usual = "" if kind == "sqs" else "localhost"  # which is at no host, but in a region
    return _joined(kind, connection.hostname or usual, port, connection.virtual_host)


def _sentinels(kind: str, connection: Any) -> Iterator[str]:
    """They share the database of the first, and no port."""
    for url in connection.alt or [f"sentinel://{connection.hostname}:{connection.port or ''}"]:
        parts = url_to_parts(url)
        port = parts.port or connection.transport.default_port
        yield _joined(kind, parts.hostname or "localhost", port, connection.virtual_host)


def _of_url(kind: str, connection: Any) -> Iterator[str]:
    """Of a URL that kombu hands to the driver as it is, user and password and all."""
    scheme, _, rest = (connection.hostname or "").partition("://")
    if kind == "sql":
        yield _of_sqlalchemy(connection.hostname or "")
    elif kind.startswith("azure"):
        # A key may have any sign in it but this.
        yield rest.rpartition("@")[2].removesuffix(".servicebus.windows.net")
    elif scheme == "socket":
        path, _, query = rest.rpartition("@")[2].partition("?")
        vhost = dict(parse_qsl(query)).get("virtual_host")
        yield f"{quote(path)}/{_vhost(kind, vhost)}"
    else:
        address, _, path = rest.partition("?")[0].partition("/")
        if "@" in path:
            raise ValueError("a sign before it should have been quoted")
        for host in address.rpartition("@")[2].split(",") if address else ["localhost"]:
            parts = url_to_parts(f"any://{host}")
            port = None if "srv" in scheme else parts.port or _USUAL_PORT.get(kind)
            yield _joined(kind, parts.hostname or "localhost", port, path)


def _of_sqlalchemy(address: str) -> str:
    from sqlalchemy.engine import make_url  # there, where that transport is
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
    except ArgumentError as exc:
        raise ValueError from exc
    system = url.get_backend_name().replace("mariadb", "mysql")
    database = url.database or ""
    if system == "sqlite":
        return f"{system}/{quote(os.path.realpath(database))}"
    place = _joined(system, url.host or "localhost", url.port or _USUAL_PORT.get(system), database)
    more = [f"{name}={url.query[name]}" for name in _IN_QUERY if name in url.query]
    return f"{system}/{place}{quote(';'.join(more))}"


def _joined(kind: str, host: str, port: Any, vhost: str | None) -> str:
    host = _host(host)
    address = f"[{host}]" if ":" in host else quote(host, safe="")
    return f"{address}{f':{port}' if port else ''}/{_vhost(kind, vhost)}"


def _host(host: str) -> str:
    """In one spelling; this machine has many names."""
    host = host.lower()
    with suppress(ValueError):
        host = ip_address(host).compressed
    return "localhost" if host in _LOOPBACK else host


def _vhost(kind: str, vhost: str | None) -> str:
    """Of RabbitMQ as it is, of Redis a number; of others a slash around it says nothing."""
    name = vhost or ""
    if kind != "amqp":
        name = name.strip("/")
    name = name or _USUAL_VHOST.get(kind, "")
    if kind == "redis" and name.isdecimal():
        name = str(int(name))
    return quote(name, safe="")
