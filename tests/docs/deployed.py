"""What a page shows of files that are none of ours: manifests in YAML, and units of systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

_PROGRAM = re.compile(r"^(Exec\w+=)\S+", re.MULTILINE)
_NAMED = re.compile(r"# ([\w-]+\.service)\n")


def manifests(text: str) -> list[Any]:
    """The documents of a YAML block."""
    return list(yaml.safe_load_all(text))


def unit(text: str) -> ConfigParser:
    """A unit, which systemd understands, where it is installed; its first line names it."""
    found = ConfigParser(strict=False, interpolation=None, delimiters="=")
    found.read_string(text)
    named = _NAMED.match(text)
    assert named, "the first line of a unit is its name, as in # shop.service"
    if program := shutil.which("systemd-analyze"):
        with TemporaryDirectory() as folder:
            file = Path(folder, named[1])
            file.write_text(_PROGRAM.sub(r"\1/bin/true", text))  # theirs is not here
            command = [program, "verify", "--man=no", str(file)]
            said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (said.returncode, said.stdout + said.stderr) == (0, "")
    return found
