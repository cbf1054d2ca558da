"""What the documentation takes from the code: docstrings as reStructuredText, and the `--help` of
every command.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

#: `out: array of ...` or `c, beta: ...` at the beginning of a line describes arguments.
ARGUMENT = re.compile(r"([a-z_]+(?:, [a-z_]+)*): (\S.*)")

#: What reStructuredText would read as markup and docstrings mean as it is.
MARKUP = re.compile(r"([*|\\]|(?<=\w)_(?!\w))")


def with_arguments(lines: list[str]) -> Iterator[str]:
    """The lines of a docstring with each description of arguments as an entry of a list."""
    listed = indented = False
    for line in lines:
        found = ARGUMENT.fullmatch(line)
        if found and (listed or indented is None):
            yield from ("", f"**{found[1]}**", f"   {_plain(found[2])}")
            listed = True
        elif listed and line.startswith("  "):
            yield f"   {_plain(line.strip())}"
        else:
            if listed and line:
                yield ""
            listed = listed and not line
            yield _plain(line)
        indented = None if not line else False


def _plain(line: str) -> str:
    """A line without markup, except for single backticks."""
    parts = line.split("`")
    parts[::2] = [MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def read_docstring(app: Sphinx, what: str, name: str, thing: object, options, lines: list) -> None:
    lines[:] = with_arguments(lines)


class CommandHelp(SphinxDirective):
    """`{command-help} pymm.tune`: what `python -m pymm.tune --help` prints."""

    required_arguments = 1
    optional_arguments = 2

    def run(self) -> list[nodes.Node]:
        words = [*self.arguments, "--help"]
        environment = dict(os.environ, COLUMNS="80", PYTHONPATH=os.pathsep.join(sys.path))
        command = [sys.executable, "-m", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=True, timeout=120
        )
        text = f"$ python -m {' '.join(words)}\n{done.stdout.rstrip()}"
        return [nodes.literal_block(text, text, language="console")]


def setup(app: Sphinx) -> dict:
    app.connect("autodoc-process-docstring", read_docstring)
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
