"""``dlock web``: the page, for this host only unless it is told otherwise."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import Any

import click

from celery_dlock.cli.command import Service, app_of

#: By which names a browser on this host may call it.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command(cls=Service, short_help="Serve a page that shows all this.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8460,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="The port to listen on.",
)
@click.option("--writable", is_flag=True, help="Release, cancel and replay; asks for the token.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What is to be asked for; also DLOCK_WEB_TOKEN. Otherwise one is made and printed.",
)
@click.option("--show-args", is_flag=True, help="Show the arguments of dead messages.")
@click.pass_context
def web(
    ctx: click.Context,
    *,
    host: str,
    port: int,
    writable: bool,
    token_file: Path | None,
    show_args: bool,
) -> None:
    """Serve a page that shows the locks, who waits, and what went wrong.

    It is for this host, and for reading. Whoever is to act on it, or to read it from another host,
    has to sign in with a token.
    """
    try:
        import uvicorn

        from celery_dlock.web.headers import KnownHosts
        from celery_dlock.web.sessions import new_token
        from celery_dlock.web.site import site
    except ImportError as exc:
        need = f"{exc.name} is missing: pip install 'celery-dlock[web]'"
        raise click.ClickException(need) from exc
    own = _is_loopback(host)
    token = _given(token_file)
    asked = writable or not own or token is not None
    made = new_token() if asked and token is None else None
    served = site(
        app_of(ctx),
        allowed=None if asked else _anybody,
        token=token if made is None else made,
        writable=writable,
        show_args=show_args,
    )
    at = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    try:
        _listen_once(host, port)
    except OSError as exc:
        raise click.ClickException(f"cannot listen at {at}: {exc.strerror}") from exc
    _say(at, made, own=own, asked=asked)
    try:
        uvicorn.run(
            KnownHosts(served, (*LOOPBACK, host)) if own else served,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,  # it would tell the token
            server_header=False,
            http="h11",
            ws="none",
        )
    except SystemExit as exc:  # it has said why: another one listens there, say
        raise click.exceptions.Exit(1) from exc


def _listen_once(host: str, port: int) -> None:
    """Nobody is to be told an address at which somebody else answers, and a token for it.

    Raises :exc:`OSError` for one where nobody can listen.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, _, _, _, at in found:
        try:
            socket.create_server(at[:2], family=family).close()
        except OSError as exc:
            if exc.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                raise  # else this host has no such family, and listens with the other one


def _say(at: str, made: str | None, *, own: bool, asked: bool) -> None:
    """Where it is, once."""
    if made is not None:
        click.echo(f"{at}sign-in?token={made}")
    else:
        click.echo(f"{at}sign-in" if asked else at)
    if not own:
        click.echo(
            "It can be reached from other hosts, and what is sent is not encrypted: reading asks "
            "for the token, too. Put TLS before it.",
            err=True,
        )


def _given(token_file: Path | None) -> str | None:
    """The token of the file, or that of the environment."""
    if token_file is not None:
        try:
            return token_file.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError as exc:
            raise click.ClickException(f"{token_file} is not a text that can be typed") from exc
    return os.environ.get("DLOCK_WEB_TOKEN", "").strip() or None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _anybody(_request: Any) -> bool:
    return True
