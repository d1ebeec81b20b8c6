"""Ports are for one process, and nobody is there."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.services.ports import BUS, free_ports

pytestmark = pytest.mark.once

GIVE = """
from tests.services.ports import free_ports
print(*free_ports(1000), flush=True)
input()
"""


def test_threads_are_not_given_the_same_port() -> None:
    with ThreadPoolExecutor(8) as threads:
        ports = [port for found in threads.map(free_ports, [5] * 40) for port in found]
    assert len(set(ports)) == 200


def test_two_processes_are_not_given_the_same_port_nor_the_bus_of_one() -> None:
    command = [sys.executable, "-c", GIVE]
    with (
        subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as one,
        subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other,
    ):
        of_one, of_other = ({int(port) for port in _line(p).split()} for p in (one, other))
        one.communicate("\n")
        other.communicate("\n")

    assert len(of_one) == len(of_other) == 1000
    assert of_one.isdisjoint(of_other)
    assert {port + BUS for port in of_one}.isdisjoint(of_one | of_other)


def test_a_port_is_not_given_whose_bus_is_taken() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port + 1 + BUS)):
        (after,) = free_ports(1)
    assert after != port + 1


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
