"""What pip installs, from wheel, sdist or editable: all of pymm, and it multiplies away from its
checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import pymm

ROOT = Path(__file__).resolve().parents[1]
SITE = sysconfig.get_path("purelib")
BESIDE = (".ci", ".github", "benchmarks", "docs", "examples", "reports", "tests", "tools")
FILES = (".gitignore", "LICENSE", "MANIFEST.in", "Makefile")
SOURCES = ("pymm", "cpu_src", "cuda_src", "tuning_configs")
EXTRA = {"_build", "build", "PKG-INFO", "setup.cfg", "pymm_cuda.egg-info", "__pycache__"}
KINDS = {".js", ".py", ".css", ".cu", ".cuh", ".cpp", ".hpp", ".md", ".yaml", ".npz"}

pytestmark = pytest.mark.xdist_group("package")  # one process builds for all of them

MULTIPLY = """
import os
from importlib import resources
import numpy as np
import pymm
from pymm.kernels import KERNELS
from pymm.kernels.source import kernel_text

texts = [kernel_text(kernel.backend, kernel.file) for kernel in KERNELS]
assert all("gemm" in text for text in texts)
for folder in ("cpu_src", "cuda_src", "tuning_configs"):
    assert resources.files(f"pymm.{folder}").is_dir()
a, b = np.arange(35.0).reshape(5, 7), np.arange(21.0).reshape(7, 3)
np.testing.assert_array_equal(pymm.matmul(a, b, device="cpu"), a @ b)
print(os.path.realpath(pymm.__file__))
"""


def test_tests_of_a_group_run_in_one_process(request):
    """Some pytest and pytest-xdist together forget it without a word, and builds are made twice."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@package")


def run(*command: object, cwd: Path) -> str:
    unwanted = ("PYTHONPATH", "PYTHONWARNINGS", "PYTEST")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def shipped() -> set[str]:
    """The package's files in a checkout, under the names that they have once installed."""
    return {
        str(path.relative_to(ROOT) if folder == "pymm" else "pymm" / path.relative_to(ROOT))
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and (path.suffix in KINDS or path.name == "py.typed")
    }


def pip(python: object, *words: object, cwd: Path) -> str:
    """Pip without the index: what is needed to build stands in the running environment."""
    return run(python, "-m", "pip", "-q", "--disable-pip-version-check", *words, cwd=cwd)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without anything that was built in it."""
    copy = tmp_path_factory.mktemp("checkout") / "pymm"
    copy.mkdir()
    for folder in (*SOURCES, *BESIDE):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=skip)
    for path in ROOT.iterdir():
        if path.is_file() and (path.name in FILES or path.suffix in (".md", ".py", ".toml")):
            shutil.copy(path, copy)
    return copy


def build_wheel(source: Path, folder: Path) -> Path:
    pip(
        sys.executable,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        source,
        cwd=folder,
    )
    (wheel,) = folder.glob("pymm_cuda-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, folder, cwd=checkout)
    (archive,) = folder.glob("pymm_cuda-*.tar.gz")
    return archive


def empty_environment(folder: Path) -> Path:
    """The Python of an empty environment: it sees this one's packages, as a directory on its
    path, but not through this one's .pth files, so that pymm is not among them.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    purelib = run(python, "-c", "import sysconfig as s; print(s.get_path('purelib'))", cwd=folder)
    Path(purelib, "dependencies.pth").write_text(SITE + "\n")
    return python


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return empty_environment(tmp_path)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    python = empty_environment(folder)
    pip(python, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=folder)
    return python


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_every_file_and_no_other(wheel):
    assert names(wheel) == shipped()
    assert wheel.name.endswith("-py3-none-any.whl")


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_the_distribution_is_not_named_as_somebody_elses(wheel):
    told = metadata(wheel)
    assert told["Name"] == "pymm-cuda" and told["Version"] == pymm.__version__
    assert "Typing :: Typed" in told.get_all("Classifier")


def test_the_page_of_an_index_leads_nowhere_that_is_not_there(wheel):
    """README.md with its words, and without links and pictures of the checkout."""
    page = metadata(wheel).get_payload()
    readme = (ROOT / "README.md").read_text()
    assert not re.findall(r"\]\((?!\w+:|#)[^)]*\)", page) and "![" not in page
    assert re.findall(r"\]\((?!\w+:|#)[^)]*\)", readme), "README.md has none to leave out"
    words = [re.sub(r"\]\([^)]*\)|[\[\]]", "", line) for line in readme.splitlines()]
    told = {re.sub(r"\]\([^)]*\)|[\[\]]", "", line) for line in page.splitlines()}
    missing = [line for line in words if line not in told and not line.startswith("!")]
    assert missing == []


def test_sdist_builds_the_same_wheel(sdist, wheel, tmp_path):
    assert names(build_wheel(sdist, tmp_path)) == names(wheel)


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **filtered)
    (root,) = folder.iterdir()
    return root


def test_sdist_holds_every_file_of_a_checkout(checkout, unpacked):
    def files(folder: Path) -> set[str]:
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return {str(name) for name in found if not EXTRA & {name.name, *name.parts}}

    assert files(unpacked) == files(checkout)


def test_tests_of_an_sdist_run(unpacked):
    """All of them are found, and those that read the files beside the package pass."""
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    # Nothing is asserted there: plain, three times as fast.
    found = run(*pytest_, "--collect-only", "--assert=plain", cwd=unpacked)
    assert "tests/bench/test_results.py::" in found
    quick = ("bench/test_results", "core/test_shapes", "kernels/test_source")
    where = "import pymm; print(pymm.__file__)"
    assert Path(run(sys.executable, "-c", where, cwd=unpacked)).is_relative_to(unpacked)
    slow = ("-k", "not calls_are_measured")
    told = run(*pytest_, *slow, *(f"tests/{name}.py" for name in quick), cwd=unpacked)
    assert " passed" in told and "failed" not in told


def test_wheel_multiplies_in_a_clean_environment(installed, tmp_path):
    where = run(installed, "-W", "error", "-c", MULTIPLY, cwd=tmp_path)
    assert Path(where).is_relative_to(installed.parents[1])
    assert "usage" in run(installed.parent / "pymm", "--help", cwd=tmp_path)


def test_a_users_file_passes_a_strict_type_checker(installed, tmp_path):
    """And one with mistakes does not: the types of the installed package are seen."""
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", installed)
    mypy = (*mypy, "--cache-dir", tmp_path / "cache")
    shutil.copy(ROOT / "tests" / "api" / "typed_use.py", tmp_path)
    run(*mypy, "typed_use.py", cwd=tmp_path)
    wrong = "import pymm\npymm.matmul(1, 2, alfa=3)\nx: str = pymm.plan(1, 2)\npymm.nothing()\n"
    (tmp_path / "wrong.py").write_text(wrong)
    words = [str(word) for word in (*mypy, "wrong.py")]
    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout
    assert all(f"wrong.py:{line}: error" in told for line in (2, 3, 4)) and "3 errors" in told


def test_editable_install_multiplies_with_the_checkout(checkout, clean, tmp_path):
    pip(
        clean,
        "install",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--ignore-installed",
        "--editable",
        checkout,
        cwd=tmp_path,
    )
    where = run(clean, "-W", "error", "-c", MULTIPLY, cwd=tmp_path)
    assert Path(where) == checkout / "pymm" / "__init__.py"


def test_checkout_multiplies_without_being_installed(checkout, clean):
    code = MULTIPLY.replace('resources.files(f"pymm.{folder}").is_dir()', "True")
    assert Path(run(clean, "-c", code, cwd=checkout)) == checkout / "pymm" / "__init__.py"
