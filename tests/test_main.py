"""The command `pymm`: dispatch, help, explain, tables."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pymm import __main__ as door
from pymm import __version__, api
from pymm.console import duration, show_table
from pymm.core.dtypes import FLOAT32


def test_help_names_every_command_that_is_there_and_no_other(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        assert door.main(arguments) == 0
        text = capsys.readouterr().out
        for command in ("doctor", "configs", "explain", "version"):
            assert f"\n  {command} " in text
        assert "examples:" in text and "absent" not in text


def test_an_unknown_command_is_named(capsys):
    assert door.main(["absent"]) == 2
    error = capsys.readouterr().err
    assert "no command 'absent'; there are" in error and "doctor" in error


def test_commands_get_their_arguments_and_give_the_exit_code(monkeypatch):
    seen = []
    module = SimpleNamespace(main=lambda arguments: seen.append(arguments) or 3)
    monkeypatch.setattr(door.importlib, "import_module", lambda name: module)
    assert door.main(["doctor", "--json"]) == 3
    assert seen == [["--json"]]


def test_version(capsys):
    for argument in ("version", "--version", "-V"):
        assert door.main([argument]) == 0
        assert capsys.readouterr().out == f"pymm {__version__}\n"


def test_help_imports_neither_tuner_nor_driver():
    code = (
        "import sys, pymm.__main__ as door; door.main([]); "
        "print([m for m in ('optuna', 'yaml', 'pycuda', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_explain_is_the_librarys(monkeypatch, capsys):
    asked = []
    told = lambda *shapes, **more: asked.append((shapes, more)) or "because"  # noqa: E731
    monkeypatch.setattr(api, "explain", told)
    assert door.main(["explain", "4", "2x3x5", "--layout", "TN", "--kernel", "1"]) == 0
    assert capsys.readouterr().out == "because\n\nbecause\n"
    more = {
        "trans_a": True,
        "trans_b": False,
        "kernel": "1",
        "device": None,
        "dtype": FLOAT32,
        "precision": "ieee",
        "out_dtype": FLOAT32,
    }
    assert asked == [(((4, 4), (4, 4)), more), (((5, 2), (5, 3)), more)]


def test_explain_on_this_cpu(capsys):
    assert door.main(["explain", "100x90x7", "--dtype", "f64", "--device", "cpu:1"]) == 0
    text = capsys.readouterr().out
    assert "f64-NN-100x90x7" in text and "01_blocked" in text and "because" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", "12x13"], "'12x13' has 2 extents"),
        (["explain", "64", "--kernel", "best", "--device", "cpu:1"], "no kernel 'best'"),
        (["explain", "64", "--dtype", "int8"], "int8"),
        (["explain", "64", "--dtype", "nonsense"], "nonsense"),
        (["configs", "--device", "cpus"], "device 'cpus' is none of"),
    ],
)
def test_what_makes_no_sense_is_one_line(capsys, arguments, words):
    assert door.main(arguments) == 1
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "-"),
        (float("nan"), "-"),
        (9e-7, "900 ns"),
        (1.23456e-5, "12.35 us"),
        (1.168e-2, "11.68 ms"),
        (11680.0, "11680 s"),
    ],
)
def test_times_have_a_unit_and_no_exponent(seconds, words):
    assert duration(seconds) == words


def test_tables_are_plain_lines_where_there_is_no_terminal(capsys):
    show_table(("name", "us"), [("a", 1), ("long name", 12345)], "Times", numbers=("us",))
    assert capsys.readouterr().out == (
        "Times\nname          us\na              1\nlong name  12345\n"
    )
    show_table(("name", "us"), [])
    assert capsys.readouterr().out == "name  us\n"


def test_tables_are_drawn_on_a_terminal_and_their_text_taken_as_it_is():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    show_table(("name", "us"), [("[red]a[/x]", 1)], "Times", file=terminal)
    assert "[red]a[/x]" in terminal.getvalue() and "─" in terminal.getvalue()


#: Commands that are modules too; the others are run by the dispatcher alone.
MODULES = ("tune", "bench", "report", "doctor", "precompile", "distributed")
NESTED = (
    "tune replay",
    *(f"distributed {x}" for x in ("bench", "calibrate", "explain", "simulate")),
)


@pytest.mark.parametrize(
    "words",
    [
        *(f"pymm {command}" for command in (*door.MODULES, "explain", *NESTED)),
        *(f"pymm.{command}" for command in (*MODULES, *NESTED)),
    ],
)
def test_help_names_the_command_as_it_was_started(words):
    command = [sys.executable, "-m", *words.split(), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    name = words if words.startswith("pymm ") else f"python -m {words}"
    assert done.returncode == 0 and done.stdout.startswith(f"usage: {name} ["), done.stderr
