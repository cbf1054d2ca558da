"""The rules of the code base: who may import whom, how long things are, what documents promise."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from pymm.kernels.source import ALLOWED_INCLUDES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pymm"
FOLDERS = ("pymm", "cpu_src", "cuda_src", "tests", "tools", "benchmarks", "examples")
SUFFIXES = {".py", ".cu", ".cuh", ".cpp", ".hpp"}
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in SUFFIXES and not path.is_symlink()
)
PYTHON = [path for path in FILES if path.suffix == ".py"]
MODULES = [path for path in PYTHON if PACKAGE in path.parents]
CUDA = [path for path in FILES if "cuda_src" in path.parts and path.suffix != ".py"]
KERNELS = [*CUDA, *(path for path in FILES if path.parent.name == "cpu_src")]
KERNELS = [path for path in KERNELS if path.suffix != ".py"]
DOCUMENTS = [path for path in sorted(ROOT.glob("*.md")) if path.name != "CHANGELOG.md"]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))

#: The packages that each package may import, besides itself. `runtime` (multiply) and `measure`
#: (verify and time) do not know each other.
LAYERS = {
    "core": "",
    "console": "core",
    "simulator": "core",
    "kernels": "core",
    "backends": "core simulator kernels",
    "selection": "core console kernels backends",
    "runtime": "core kernels backends selection",
    "blocked": "core kernels backends selection runtime",
    "api": "core kernels backends selection runtime blocked",
    "einsum": "api",
    "torch": "core runtime api",
    "measure": "core console kernels backends",
    "distributed": "core console kernels backends selection runtime api measure",
    "tune": "core console kernels backends selection runtime measure",
    "bench": "core console kernels backends selection measure tune",
    "report": "core console kernels backends selection measure tune bench",
    "precompile": "core console kernels backends selection measure",
    "doctor": "core console kernels backends selection api measure",
    "show_configs": "core console backends selection",
}

#: Libraries used or compared with where a user has them; nothing asks for them.
BASELINES = {"cupy", "simgrid", "torch", "triton"}

#: What may be imported only in some places: elsewhere everything runs and is tested without it.
PLACES = {
    "pycuda": ("backends.cuda", "simulator"),
    "ctypes": ("backends", "simulator", "doctor", "measure.cublas", "distributed.scalapack"),
    "subprocess": ("backends", "simulator", "doctor", "measure.apart", "distributed.simgrid"),
    "simgrid": ("distributed.simgrid_replay",),
    "optuna": ("tune",),
    "mpi4py": ("distributed",),
    "yaml": ("selection.store",),
    "os.environ": (
        "core.paths",
        "backends",
        "simulator",
        "measure.precompile",
        "distributed.communicator",
    ),
}

#: Headers and kernels that hold inline PTX.
WITH_PTX = {
    "dependent_launch",
    "half_types",
    "hopper",
    "l2_policy",
    "mma_fragments",
    "ptx",
}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def name_of(path: Path) -> str:
    """`backends.cuda` for pymm/backends/cuda/__init__.py."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


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


def faults(found: Iterable[str]) -> None:
    """Fail with all that was found, one to a line."""
    lines = sorted(found)
    assert not lines, "\n" + "\n".join(lines)


def test_packages_import_only_what_stands_below():
    def wrong() -> Iterator[str]:
        for path in MODULES:
            own = name_of(path).split(".")[0]
            top = path.parent == PACKAGE and path.stem == "__init__"
            if top or path.stem == "__main__":  # entry points stand above all packages
                continue
            allowed = {own, *LAYERS[own].split()}
            used = {name.split(".")[1] for name in imports(path) if name.startswith("pymm.")}
            yield from (f"{relative(path)} imports {name}" for name in used - allowed)

    faults(wrong())


def test_layers_are_in_an_order_and_the_design_has_it():
    seen: list[str] = []
    for package, below in LAYERS.items():
        assert set(below.split()) <= set(seen), f"{package} stands below what it imports"
        seen.append(package)
    text = (ROOT / "DESIGN.md").read_text()
    page = text.split("## The layers", 1)[1].split("\n## ", 1)[0]
    assert [name for name in re.findall(r"^\| `(\w+)", page, re.MULTILINE)] == list(LAYERS)


def guarded(path: Path) -> set[str]:
    """The names of PLACES that a module uses."""
    named = set(imports(path))
    found = {name.split(".")[0] for name in named} | named
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "os" and node.attr in ("environ", "getenv", "environb", "putenv"):
                found.add("os.environ")
    return found & set(PLACES)


def test_guarded_modules_stay_in_their_places():
    def wrong() -> Iterator[str]:
        for path in MODULES:
            own = name_of(path)
            for used in guarded(path):
                if not any(own == p or own.startswith(f"{p}.") for p in PLACES[used]):
                    yield f"{relative(path)} uses {used}; only {PLACES[used]} may"

    faults(wrong())


#: Where the kind of a device is data: saved, shown, or matched with a declaration.
KINDS_SHOWN = (
    "core.device",
    "measure.libraries",
    "report.facts",
    "selection.records",
    "tune.devices",
)


def test_only_backends_ask_for_the_kind_of_a_device():
    def wrong() -> Iterator[str]:
        for path in MODULES:
            own = name_of(path)
            if own.startswith("backends") or own in KINDS_SHOWN:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr == "kind":
                    holder = ast.unparse(node.value).rpartition(".")[2]
                    if holder in ("device", "d"):
                        yield f"{relative(path)}: {ast.unparse(node)}: say what differs (`Device`)"

    faults(wrong())


def loaded_by(module: str, names: tuple[str, ...]) -> str:
    code = f"import sys, {module}; print([name for name in {names} if name in sys.modules])"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_importing_is_light():
    heavy = ("mpi4py", "optuna", "pycuda", "rich", "sqlalchemy", "yaml")
    assert loaded_by("pymm", heavy).strip() == "[]"
    for command in ("pymm.bench.kernels", "pymm.report.cli"):
        assert loaded_by(command, ("optuna", "sqlalchemy", "pycuda")).strip() == "[]", command


def test_pip_is_not_told_a_name_that_is_somebody_elses():
    """The package index has a `pymm` that is not this one."""
    told = re.compile(r"pip install '?pymm\b")
    faults(relative(p) for p in [*MODULES, *DOCUMENTS] if told.search(p.read_text()))


def test_every_foreign_package_is_declared():
    """An import that no requirement brings works only where somebody installed it by hand."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *extras["cuda"], *extras["mpi"], *extras["report"]]
    declared = {re.match(r"[\w-]+", line)[0] for line in required}
    given = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py", "cuda": "cuda-pathfinder"}
    own = {"pymm", "", *sys.stdlib_module_names}
    own |= {path.stem for path in PACKAGE.glob("simulator/*.py")}  # its nvcc runs as a script
    foreign = {name.split(".")[0] for path in MODULES for name in imports(path)} - own
    assert {given.get(name, name) for name in foreign} <= declared | BASELINES


def test_lines_are_short_and_names_of_files_say_something():
    """How long a file is, its subject decides."""

    def wrong() -> Iterator[str]:
        for path in FILES:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if len(line) > 100:
                    yield f"{relative(path)}:{number} has {len(line)} columns"
            if re.search(r"(^|_)(utils?|helpers?|misc|fast|optimized)(_|$)", path.stem):
                yield f"{relative(path)}: its name says nothing"

    faults(wrong())


def test_lines_of_documents_are_short():
    """Prose: not tables, code, pictures, comments, or what has no space to break at. Code in
    backticks is one word.
    """

    def wrong() -> Iterator[str]:
        for path in (*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "LOG.md"):
            code = False
            for number, line in enumerate(path.read_text().splitlines(), 1):
                fence = line.lstrip().startswith("```")
                code ^= fence
                words = re.sub(r"`[^`]*`", "code", line.strip().lstrip("-*0123456789. ")).split()
                one_line = re.match(r" {4}|[|#!<]|\[!|\.\. ", line)
                if len(line) > 100 and len(words) > 1 and not (code or fence or one_line):
                    yield f"{relative(path)}:{number} has {len(line)} columns"

    faults(wrong())


def test_functions_are_short():
    def wrong() -> Iterator[str]:
        for path in PYTHON:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    docstring = node.body[0] if ast.get_docstring(node) else None
                    told = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
                    length = node.end_lineno - node.lineno + 1 - told
                    if length > 50:
                        yield f"{relative(path)}: {node.name} has {length} lines"

    faults(wrong())


def test_kernel_files_open_with_their_story():
    def wrong() -> Iterator[str]:
        for path in KERNELS:
            story = re.match(r"(?:(?://[^\n]*|#pragma once)\n)+", path.read_text())
            enough = 1 if path.suffix == ".cuh" else 5
            if not story or len(story[0].splitlines()) < enough:
                yield relative(path)

    faults(wrong())


def test_kernels_are_self_contained():
    def wrong() -> Iterator[str]:
        for path in CUDA:
            text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
            if path.stem not in WITH_PTX and re.search(r"\b(__)?asm(__)?\b", text):
                yield f"{relative(path)}: inline PTX stands in common/ptx.cuh"
            for header in re.findall(r"#\s*include\s*(\S+)", text):
                own = header.startswith('"') and (ROOT / "cuda_src" / header.strip('"')).is_file()
                if not own and header.strip('<>"') not in ALLOWED_INCLUDES:
                    yield f"{relative(path)} includes {header}"

    faults(wrong())


def test_paths_in_documents_exist():
    roots = "|".join(re.escape(entry.name) for entry in ROOT.iterdir() if entry.is_dir())

    def wrong() -> Iterator[str]:
        for path in DOCUMENTS:
            text = path.read_text()
            found = re.findall(rf"(?<![\w./<>-])(?:{roots})/[\w./*<>-]*[\w*>/]", text)
            missing = [n for n in found if not any(ROOT.glob(re.sub(r"<[^>]*>", "*", n)))]
            linked = re.findall(r"\]\((?!\w+:|#)([^)#]+)", text)
            missing += [name for name in linked if not (path.parent / name).exists()]
            yield from (f"{relative(path)}: {name}" for name in missing)

    faults(wrong())


def test_commands_in_documents_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    def wrong() -> Iterator[str]:
        for path in DOCUMENTS:
            text = path.read_text()
            made = set(re.findall(r"(?:^|`)(?:\$ )?make ([a-z-]+)", text, re.MULTILINE))
            yield from (f"{relative(path)}: make {name}" for name in made - targets)
            for module in set(re.findall(r"python -m (pymm[.\w]*)", text)):
                at = ROOT.joinpath(*module.split("."))
                if not at.with_suffix(".py").is_file() and not (at / "__main__.py").is_file():
                    yield f"{relative(path)}: python -m {module}"

    faults(wrong())
