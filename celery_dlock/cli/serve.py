"""``dlock web``: the page, for this host only unless it is told otherwise. ``dlock metrics``: what
Prometheus wants to know, and the rules and the dashboard for it.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from celery_dlock.cli.command import Service, app_of
from celery_dlock.ops.gauges import READ_TIMEOUT, CachedGauges
from celery_dlock.registry import load

#: By which names a browser on this host may call it.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command(cls=Service, short_help="Serve a web page that shows the locks.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8460,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="The port to listen on.",
)
@click.option("--writable", is_flag=True, help="Allow the actions of the page, after signing in.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the token to sign in; or set DLOCK_WEB_TOKEN. Else one is made and printed.",
)
@click.option("--show-args", is_flag=True, help="Show the arguments of dead letters.")
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
    """Serve a web page that shows the locks, the waiting tasks, and what went wrong.

    By default it is for this host and read-only. To act on it, or to read it from another host,
    visitors sign in with a token.
    """
    try:
        import uvicorn

        from celery_dlock.web.auth import KnownHosts, new_token
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
        allowed=None if asked else lambda _request: True,
        token=token if made is None else made,
        writable=writable,
        show_args=show_args,
    )
    at = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    try:
        _listen_once(host, port)
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "there is no such host"
        raise click.ClickException(f"cannot listen at {at}: {why}") from exc
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
            # Else any program on this host says in a header who it is, and the log believes it.
            proxy_headers=bool(os.environ.get("FORWARDED_ALLOW_IPS")),
        )
    except SystemExit as exc:  # it has said why: another one listens there, say
        raise click.exceptions.Exit(1) from exc


def _listen_once(host: str, port: int) -> None:
    """Nobody is to be told an address at which somebody else answers, and a token for it.

    Raises :exc:`OSError` for one where nobody can listen.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, _, _, _, at in addresses:
        try:
            socket.create_server(at[:2], family=family).close()
        except OSError as exc:
            if exc.errno != errno.EADDRNOTAVAIL or len(addresses) == 1:
                raise  # else this host has no such family, and listens with the other one


def _say(at: str, made: str | None, *, own: bool, asked: bool) -> None:
    """Where it is, once."""
    if made is not None:
        click.echo(f"{at}sign-in?token={made}")
    else:
        click.echo(f"{at}sign-in" if asked else at)
    if not own:
        click.echo(
            "Other hosts can reach this page, and traffic is not encrypted: put a TLS proxy before "
            "it. Reading needs the token too.",
            err=True,
        )


def _given(token_file: Path | None) -> str | None:
    """The token of the file, or that of the environment."""
    if token_file is not None:
        try:
            return token_file.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError as exc:
            raise click.ClickException(f"{token_file} is not a text file in UTF-8") from exc
    return os.environ.get("DLOCK_WEB_TOKEN", "").strip() or None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


REGISTRY = "celery_dlock.monitoring.prometheus:registry_of"


def _address(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """``HOST:PORT``; an address of IPv6 stands in brackets."""
    if value is None:
        return None
    host, _colon, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is not HOST:PORT, such as 127.0.0.1:9808")
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command(cls=Service, short_help="Print or serve the metrics for Prometheus.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve them at http://HOST:PORT/metrics.",
)
@click.option(
    "--no-gauges",
    is_flag=True,
    help="Leave out the gauges of the lock store: one host of several is enough for these.",
)
@click.option("--rules", is_flag=True, help="Print alerting and recording rules for Prometheus.")
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana.")
@click.pass_context
def metrics(
    ctx: click.Context,
    *,
    listen: tuple[str, int] | None,
    no_gauges: bool,
    rules: bool,
    dashboard: bool,
) -> None:
    """Print or serve the metrics for Prometheus.

    Gauges describe the lock store and are the same on each host. Counters come from the processes
    of this host that share the folder PROMETHEUS_MULTIPROC_DIR and have the sink "prometheus".

    While the store is unavailable dlock_store_up is 0, and dlock_store_writable while it refuses
    writes. The other gauges are those of the last reading; dlock_reading_age_seconds is its age.
    """
    if rules + dashboard + (listen is not None) > 1:
        raise click.UsageError("give only one of --listen, --rules and --dashboard")
    if rules or dashboard:
        file = files("celery_dlock.monitoring") / ("rules.yml" if rules else "dashboard.json")
        click.echo(file.read_text(encoding="utf-8"), nl=False)
        return
    registry = registry_of_app(app_of(ctx), gauges=not no_gauges, waits=listen is None)
    if listen is None:
        from prometheus_client import generate_latest

        click.echo(generate_latest(registry), nl=False)
        _say_if_nothing_is_counted()
    else:
        _serve(listen, registry)


def registry_of_app(app: Any, *, gauges: bool, waits: bool) -> Any:
    """Two that ask at once have the store asked once; who *waits* has all its keys read.

    Raises :exc:`~celery_dlock.ConfigurationError` with the command to run when the library of
    Prometheus is not installed.
    """
    registry_of = load(REGISTRY, "prometheus", "dlock metrics")
    cached = CachedGauges(app, None if waits else READ_TIMEOUT)

    def store_gauges() -> dict[str, float]:
        report = cached.get()
        values = {"store_up": float(report.up), "store_writable": float(report.writable)}
        if report.beat_leads is not None:
            values["beat_leads"] = float(report.beat_leads)
        if report.gauges is not None and report.age is not None:
            values |= {"reading_age": report.age, **asdict(report.gauges)}
        return values

    return registry_of(store_gauges if gauges else dict)


def _say_if_nothing_is_counted() -> None:
    from celery_dlock.monitoring.prometheus import VARIABLE, folder

    if folder() is None:
        missing = f"{VARIABLE} is not set here, so the counters of workers are missing"
        click.echo(missing, err=True)


def _serve(at: tuple[str, int], registry: Any) -> None:
    """Answer until Ctrl-C."""
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(at[1], at[0], registry)
    except OSError as exc:
        raise click.ClickException(f"cannot listen at {at[0]}:{at[1]}: {exc}") from exc
    host, port = server.server_address[:2]
    shown = f"[{host!s}]" if ":" in str(host) else str(host)
    click.echo(f"ready: http://{shown}:{port}/metrics")
    _say_if_nothing_is_counted()
    with server:
        with suppress(KeyboardInterrupt):
            thread.join()
        server.shutdown()
