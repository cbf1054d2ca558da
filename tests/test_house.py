"""The rules of the house: who may import whom, how long things may be, what documents promise."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pymm.source import ALLOWED_INCLUDES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pymm"
FOLDERS = ("pymm", "cpu_src", "cuda_src", "tests", "tools")
SUFFIXES = {".py", ".cu", ".cuh", ".cpp", ".hpp"}
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in SUFFIXES and not path.is_symlink()
)
PYTHON = [path for path in FILES if path.suffix == ".py"]
MODULES = [path for path in PYTHON if PACKAGE in path.parents]
KERNELS = [path for path in FILES if path.parent.name in ("cpu_src", "cuda_src", "common")]
KERNELS = [path for path in KERNELS if path.suffix != ".py"]
DOCUMENTS = [path for path in sorted(ROOT.glob("*.md")) if path.name != "CHANGELOG.md"]

#: Libraries compared with where a user has them; nothing asks for them.
OPPONENTS = {"cupy", "torch", "triton"}

#: Folders that the stairs name as one room.
FOLDED = ("backends.cuda", "kernels", "report", "simulator", "suites")

#: What may be imported only in some places: elsewhere everything runs and is tested without it.
PLACES = {
    "pycuda": ("backends.cuda", "simulator"),
    "ctypes": ("backends", "simulator", "doctor"),
    "subprocess": ("backends", "simulator", "doctor"),
    "optuna": ("search", "tune"),
    "yaml": ("store",),
    "os.environ": ("cache", "backends", "simulator"),
}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def each(files: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", files, ids=relative)


def stairs() -> list[str]:
    """The modules in the order that DESIGN.md gives them: three spaces, then a line's comment."""
    text = (ROOT / "DESIGN.md").read_text()
    block = text.split("## The stairs", 1)[1].split("```")[1]
    return [word for line in block.splitlines() for word in line.split("   ")[0].split()]


def name_of(path: Path) -> str:
    """`backends.cpu` for pymm/backends/cpu.py; a folder of FOLDED is one room."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
    return next((room for room in FOLDED if name.startswith(room)), name)


def imports(path: Path) -> Iterator[str]:
    """Every module, and every name from a module, that a file imports, at any depth."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rooms(path: Path, known: list[str]) -> set[str]:
    """The modules of pymm that a file imports, by the names of the stairs. The package itself is
    none of them: it is imported before any of its modules.
    """
    found = set()
    for name in imports(path):
        first, *parts = name.split(".")
        names = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
        if first == "pymm":
            found |= set([name for name in names if name in known][:1])
    return found


def test_stairs_name_every_module():
    assert sorted(stairs()) == sorted({name_of(path) for path in MODULES})


@each(MODULES)
def test_imports_only_what_stands_before(path):
    order, own = stairs(), name_of(path)
    assert own in order, f"the stairs in DESIGN.md do not name {own}"
    above = rooms(path, order) - set(order[: order.index(own)]) - {own}
    assert not above, f"{relative(path)} imports {', '.join(sorted(above))}, which stands above it"


def test_no_import_cycles():
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in MODULES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph = {name: set(imports(path)) & set(names) - {name} for name, path in names.items()}
    graph = {name: found - {"pymm"} for name, found in graph.items()}  # imported before them all
    for name, found in graph.items():  # and a folder before its modules
        found -= {other for other in names if name.startswith(f"{other}.")}
    graphlib.TopologicalSorter(graph).prepare()


def uses(path: Path) -> set[str]:
    """The guarded names that a module uses."""
    found = {name.split(".")[0] for name in imports(path)} | set(imports(path))
    text = ast.parse(path.read_text())
    for node in ast.walk(text):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "os" and node.attr in ("environ", "getenv", "environb", "putenv"):
                found.add("os.environ")
    return found & set(PLACES)


@each(MODULES)
def test_guarded_modules_stay_in_their_places(path):
    own = name_of(path)
    for used in uses(path):
        allowed = [own == place or own.startswith(f"{place}.") for place in PLACES[used]]
        assert any(allowed), f"{relative(path)} uses {used}; only {PLACES[used]} may"


def test_importing_pymm_is_light():
    heavy = ("optuna", "pycuda", "rich", "sqlalchemy", "yaml")
    code = f"import sys, pymm; print([name for name in {heavy} if name in sys.modules])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@each([*MODULES, *DOCUMENTS])
def test_pip_is_not_told_a_name_that_is_somebody_elses(path):
    """The package index has a `pymm` that is not this one."""
    assert not re.search(r"pip install '?pymm\b", path.read_text())


def test_every_foreign_package_is_declared():
    """An import that no requirement brings works only where somebody installed it by hand."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *extras["cuda"], *extras["report"]]
    declared = {re.match(r"[\w-]+", line)[0] for line in required}
    given = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py", "cuda": "cuda-pathfinder"}
    own = {"pymm", "", *sys.stdlib_module_names}
    own |= {path.stem for path in PACKAGE.glob("simulator/*.py")}  # its nvcc runs as a script
    foreign = {name.split(".")[0] for path in MODULES for name in imports(path)} - own
    assert {given.get(name, name) for name in foreign} <= declared | OPPONENTS


@each(FILES)
def test_size(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 500, f"{relative(path)} has {len(lines)} lines"
    long = [number for number, line in enumerate(lines, 1) if len(line) > 100]
    assert not long, f"{relative(path)}: more than 100 columns in lines {long}"
    assert not re.search(r"(^|_)(utils?|helpers?|misc|fast|optimized)(_|$)", path.stem)


@each(PYTHON)
def test_functions_are_short(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if ast.get_docstring(node) else None
            told = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            length = node.end_lineno - node.lineno + 1 - told
            assert length <= 50, f"{relative(path)}: {node.name} has {length} lines"


@each(KERNELS)
def test_kernel_file_opens_with_its_story(path):
    story = re.match(r"(?:(?://[^\n]*|#pragma once)\n)+", path.read_text())
    enough = 1 if path.suffix == ".cuh" else 5
    assert story and len(story[0].splitlines()) >= enough, f"{relative(path)} tells no story"


@each([path for path in KERNELS if "cuda_src" in path.parts])
def test_kernels_are_self_contained(path):
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    with_ptx = ("ptx.cuh", "matrices.cuh", "halves.cuh", "launches.cuh", "hopper.cuh",
                "policy.cuh")  # fmt: skip
    if path.name not in with_ptx:
        assert not re.search(r"\b(__)?asm(__)?\b", text), "inline PTX stands in common/ptx.cuh"
    for header in re.findall(r"#\s*include\s*(\S+)", text):
        own = header.startswith('"') and (ROOT / "cuda_src" / header.strip('"')).is_file()
        assert own or header.strip('<>"') in ALLOWED_INCLUDES, header


@each(DOCUMENTS)
def test_paths_in_documents_exist(path):
    text = path.read_text()
    roots = "|".join(re.escape(entry.name) for entry in ROOT.iterdir() if entry.is_dir())
    found = re.findall(rf"(?<![\w./<>-])(?:{roots})/[\w./*<>-]*[\w*>/]", text)
    found += re.findall(r"\]\((?!\w+:|#)([^)#]+)", text)
    missing = [name for name in found if not any(ROOT.glob(re.sub(r"<[^>]*>", "*", name)))]
    assert not missing


@each(DOCUMENTS)
def test_commands_in_documents_exist(path):
    text = path.read_text()
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = re.findall(r"(?:^|`)(?:\$ )?make ([a-z-]+)", text, re.MULTILINE)
    assert set(made) <= set(targets)
    names = [path.split(".") for path in re.findall(r"python -m (pymm[.\w]*)", text)]
    places = [ROOT.joinpath(*name) for name in names]
    assert all(p.with_suffix(".py").is_file() or (p / "__main__.py").is_file() for p in places)
