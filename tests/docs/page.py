"""Runs the code blocks of one page in the working directory: ``python -m tests.docs.page PAGE``.

``python`` blocks share one namespace; one whose first line is a comment with a file name, such as
``# shop.py``, is written to that file instead. ``console`` blocks go to the shell. What a ``yaml``
or an ``ini`` block says is parsed, and the ``python`` blocks after it find it as ``manifests`` and
``unit``; one that begins with ``# rules.yml`` or another such name is also written to that file. A
block in any other language but ``text`` is an error, so that none is left out unseen.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers import markdown, rest

from tests.docs import deployed
from tests.docs.shell import Shell

FILE_NAME = re.compile(r"# ([\w/]+\.py)\n")
YAML_NAME = re.compile(r"# ([\w-]+\.yml)\n")
FENCED = re.compile(r"^```(.*)\n[\s\S]*?^```$", re.MULTILINE)
DIRECTIVE = re.compile(
    r"^ *\.\. (?:code-block|code|sourcecode)::(.*)$|^(?! *\.\. ).*::$", re.MULTILINE
)
KNOWN = {"python", "console", "yaml", "ini", "text"}


def languages(page: Path) -> set[str]:
    """Of its blocks, all of which are known."""
    blocks = FENCED if page.suffix == ".md" else DIRECTIVE
    found = {language.strip() for language in blocks.findall(page.read_text())}
    for language in found - KNOWN:
        what = f"blocks of {language}" if language else "a block that names no language"
        raise SystemExit(f"{page}: no way to run {what}")
    return found


def run(page: Path) -> int:
    """Run every block; how many there were."""
    languages(page)
    syntax = markdown if page.suffix == ".md" else rest
    run_python = PythonEvaluator()

    def python(example: Example) -> None:
        if found := FILE_NAME.match(example.parsed):
            target = Path(found[1])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(example.parsed)
        else:
            run_python(example)

    def manifests(example: Example) -> None:
        example.namespace["manifests"] = deployed.manifests(example.parsed)
        if found := YAML_NAME.match(example.parsed):
            Path(found[1]).write_text(example.parsed)

    def unit(example: Example) -> None:
        example.namespace["unit"] = deployed.unit(example.parsed)

    count = 0
    with Shell(Path.cwd()) as shell:
        parsers = [
            syntax.CodeBlockParser("python", python),
            syntax.CodeBlockParser("console", lambda example: shell.run(example.parsed)),
            syntax.CodeBlockParser("yaml", manifests),
            syntax.CodeBlockParser("ini", unit),
        ]
        document = Sybil(parsers=parsers).parse(page)
        document.namespace["__name__"] = page.stem
        for example in document.examples():
            example.evaluate()
            count += 1
    return count


if __name__ == "__main__":
    print(f"{run(Path(sys.argv[1]).resolve())} blocks ran")  # noqa: T201 (this is a program)
