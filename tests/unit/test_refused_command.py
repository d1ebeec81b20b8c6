"""The command that a Redis refuses, in the words of each kind of server."""

from __future__ import annotations

import pytest

from celery_dlock.stores.redis.scripts import ENTER, TIME, refused_command
from celery_dlock.stores.redlock.node import Refusal

AT = f"script: {TIME.digest.decode()}, on @user_script:1."
BEFORE_7 = (
    f"Error running script (call to f_{TIME.digest.decode()}): @user_script:1: @user_script: 1"
)
LINE = 1 + ENTER.text.split("redis.call('HEXISTS', LOST, task)")[0].count("\n")


@pytest.mark.parametrize(
    ("error", "command"),
    [
        ("this user has no permissions to run the 'evalsha' command", "EVALSHA"),
        ("NOPERM this user has no permissions to run the 'config|get' command", "CONFIG|GET"),
        (f"The user executing the script can't run this command or subcommand {AT}", "TIME"),
        (f"{BEFORE_7}: The user executing the script can't run this command or subcommand", "TIME"),
        (f"ERR This Redis command is not allowed from script {AT}", "TIME"),
        (f"Unknown Redis command called from script {AT}", "TIME"),
        (f"{BEFORE_7}: script tried accessing undeclared key", "TIME"),
        (
            f"This Redis command is not allowed from script script: {ENTER.digest.decode()}, "
            f"on @user_script:{LINE}.",
            "EXISTS or HEXISTS",
        ),
        # What is stored is wrong, another's script, a line that is not there
        (f"WRONGTYPE Operation against a key holding the wrong kind of value {AT}", ""),
        (f"user_script:1: this is not the state of a lock {AT}", ""),
        (
            f"This Redis command is not allowed from script script: {40 * 'a'}, on @user_script:1",
            "",
        ),
        (f"This Redis command is not allowed from script {AT[:-1]}00", ""),
        ("OOM command not allowed when used memory > 'maxmemory'.", ""),
        ("Timeout reading from socket", ""),
    ],
)
def test_the_error_of_a_script_names_the_command(error: str, command: str) -> None:
    assert refused_command(error) == command


def test_a_node_of_a_redlock_repeats_the_command_and_nothing_else() -> None:
    assert str(Refusal("NOPERM hunter2 has no permissions to run the 'eval' command")) == (
        "refuses EVAL: NOPERM"
    )
    assert str(Refusal("NOSCRIPT no matching script")) == "NOSCRIPT"
