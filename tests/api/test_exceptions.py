"""What pymm raises is an error of pymm's and one of Python's, and has a public name."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path

import pytest

import pymm
import pymm.tune

ROOT = Path(__file__).resolve().parents[2]

#: Exceptions that are caught where they come from, or end a process that runs no user's code.
INTERNAL = {
    *("DriverError", "OutOfMemory"),
    *("Broken", "SeveralModels", "Stopped"),
    *("Garbled", "ProfileFailed"),
    *("Fatal", "Refused"),
}


@pytest.fixture(scope="module")
def ancestors():
    """The names of the classes that each public class of the package is made of, itself too."""
    bases = {}
    for path in ROOT.glob("pymm/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases[node.name] = {ast.unparse(base).rpartition(".")[2] for base in node.bases}

    def of(name, seen):
        found = getattr(builtins, name, None)
        if isinstance(found, type):
            return {kind.__name__ for kind in found.__mro__}
        more = bases.get(name, set()) - seen
        return {name}.union(*(of(base, seen | {name}) for base in more))

    return {name: of(name, set()) for name in bases}


def test_every_exception_that_leaves_pymm_is_an_error_and_one_of_pythons(ancestors):
    raised = {name for name, kinds in ancestors.items() if "Exception" in kinds} - {"Error"}
    assert raised > INTERNAL | {"Busy", "NoDevice", "StoreError"}
    assert {name for name in raised if "Error" not in ancestors[name]} == INTERNAL
    pythons = {name for name in vars(builtins) if name.endswith("Error")}
    assert {name for name in raised - INTERNAL if not ancestors[name] & pythons} == set()


def test_what_documented_functions_raise_is_public(ancestors):
    """Every exception of pymm's own that a public docstring names is a public name."""
    public = {name for module in (pymm, pymm.tune) for name in module.__all__}
    named = set()
    for module in (pymm, pymm.tune):
        for name in module.__all__:
            things = [getattr(module, name)]
            if isinstance(things[0], type):
                things += [member for key, member in vars(things[0]).items() if key[0] != "_"]
            for thing in things:
                named |= set(re.findall(r"`(?:\w+\.)*([A-Z]\w+)`", inspect.getdoc(thing) or ""))
    errors = {name for name in named if "Error" in ancestors.get(name, ())}
    assert {"NoDevice", "StoreError", "Busy", "TuningFailed"} <= errors <= public
