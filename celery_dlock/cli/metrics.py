"""``dlock metrics``: what Prometheus wants to know, and the rules and the dashboard for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import click

from celery_dlock.cli.command import Service, app_of
from celery_dlock.inspection.gauges import Watch
from celery_dlock.registry import load_sink

REGISTRY = "celery_dlock.monitoring.prometheus:registry_of"


def _address(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """``HOST:PORT``; an address of IPv6 stands in brackets."""
    if value is None:
        return None
    host, _colon, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is not HOST:PORT, such as 127.0.0.1:9808")
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command(cls=Service)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve them at http://HOST:PORT/metrics.",
)
@click.option("--rules", is_flag=True, help="Print alerting and recording rules for Prometheus.")
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana.")
@click.pass_context
def metrics(
    ctx: click.Context, *, listen: tuple[str, int] | None, rules: bool, dashboard: bool
) -> None:
    """Print or serve the metrics, as Prometheus reads them.

    Gauges are those of the lock store, the same on each host. What is counted is of the processes
    of this host that share the folder PROMETHEUS_MULTIPROC_DIR, with the sink "prometheus". While
    the store is away they are served all the same, and dlock_store_up is 0.
    """
    if rules + dashboard + (listen is not None) > 1:
        raise click.UsageError("say one of --listen, --rules and --dashboard")
    if rules or dashboard:
        file = files("celery_dlock.monitoring") / ("rules.yml" if rules else "dashboard.json")
        click.echo(file.read_text(encoding="utf-8"), nl=False)
        return
    registry = _registry_of(app_of(ctx))
    if listen is None:
        from prometheus_client import generate_latest

        click.echo(generate_latest(registry), nl=False)
        _say_if_nothing_is_counted()
    else:
        _serve(listen, registry)


def _registry_of(app: Any) -> Any:
    """Two that ask at once have the store asked once.

    Raises :exc:`~celery_dlock.ConfigurationError` with the command to run when the library of
    Prometheus is not installed.
    """
    registry_of = load_sink(REGISTRY, "prometheus", "dlock metrics")
    watch = Watch(app)

    def standing() -> dict[str, float]:
        found = watch.get()
        return {"store_up": float(found is not None), **({} if found is None else asdict(found))}

    return registry_of(standing)


def _say_if_nothing_is_counted() -> None:
    from celery_dlock.monitoring.slots import VARIABLE, folder

    if folder() is None:
        missing = f"{VARIABLE} is not set here, so nothing is told of what workers count"
        click.echo(missing, err=True)


def _serve(at: tuple[str, int], registry: Any) -> None:
    """Answer until Ctrl-C."""
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(at[1], at[0], registry)
    except OSError as exc:
        raise click.ClickException(f"cannot listen there: {exc}") from exc
    host, port = server.server_address[:2]
    shown = f"[{host!s}]" if ":" in str(host) else str(host)
    click.echo(f"ready: http://{shown}:{port}/metrics")
    _say_if_nothing_is_counted()
    with server:
        with suppress(KeyboardInterrupt):
            thread.join()
        server.shutdown()
