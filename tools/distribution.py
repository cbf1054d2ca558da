"""Wheel and sdist in dist/, and a check that they work where nothing else of pymm is.

    python tools/distribution.py build    both, the wheel made from the sdist; README.md renders
    python tools/distribution.py check    each in a new environment: installed by name, the doctor,
                                          products on the CPU and in the simulator, removed

`make dist` and `make check-dist` run them. An index is asked for other packages alone.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import set_up

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
NAME = "pymm-cuda"

#: What a user has in the environment that a check does not: a home, and what names a compiler, a
#: toolkit, a module or a setting.
LEFT_OUT = re.compile(r"HOME|XDG_|PYTHON|PYMM_|PYTEST|CUDA|NVCC|CC$|CXX|[A-Z]*FLAGS$|VIRTUAL_ENV")

PRODUCT = """
import sys, warnings
import numpy as np
import pymm
warnings.simplefilter("error")
rng = np.random.default_rng(1)
a, b = rng.random((67, 43), np.float32), rng.random((43, 91), np.float32)
made = pymm.matmul(a, b, device=sys.argv[1])
np.testing.assert_allclose(made, a.astype(float) @ b, rtol=1e-5)
told = pymm.explain(a, b, device=sys.argv[1])
print(pymm.__file__, str(told).splitlines()[0], sep="\\n")
"""


def main() -> None:
    """The command. Exit status 1 with the reason if a step fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=("build", "check"))
    help_ = "check with this interpreter; may be given several times (default: the one that runs)"
    parser.add_argument("--python", action="append", metavar="PATH", help=help_)
    options = parser.parse_args()
    if options.step == "build":
        build()
        return
    for python in options.python or [sys.executable]:
        wheel_of_pycuda = pycuda(Path(python))
        for archive in archives():
            check(archive, Path(python), wheel_of_pycuda)


def run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """The output of a command; ends the program if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd or ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def build() -> None:
    """Fill dist/ anew."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *archives())
    check_tag()
    for archive in archives():
        print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size / 1024:.0f} KiB")


def archives() -> list[Path]:
    """The wheel and the sdist."""
    found = [path for pattern in ("*.whl", "*.tar.gz") for path in sorted(DIST.glob(pattern))]
    if len(found) != 2:
        sys.exit(f"{DIST} has {len(found)} archives instead of a wheel and an sdist: make dist")
    return found


def check_tag() -> None:
    """A tag of the commit is that of the version. A checkout without git has none."""
    if not (ROOT / ".git").exists():
        return
    tags = run("git", "tag", "--points-at", "HEAD", "--list", "v*").split()
    wanted = f"v{archives()[0].name.split('-')[1]}"
    if tags and wanted not in tags:
        sys.exit(f"this commit is tagged {', '.join(tags)}, and the version is {wanted[1:]}")


def pycuda(python: Path) -> Path:
    """A wheel of PyCUDA for an interpreter, as `make` keeps it, built if there is none."""
    code = "import set_up; print(set_up.wheel_directory())"
    folder = Path(run(python, "-c", code, cwd=ROOT / "tools"))
    kept = set_up.kept_wheel(folder)
    if kept:
        return kept
    with tempfile.TemporaryDirectory() as place:
        own = Path(place, "env", "bin", "python")
        run(python, "-m", "venv", Path(place, "env"))
        needs = [need for need in set_up.requirements("cuda") if not need.startswith("pycuda")]
        run(own, "-m", "pip", "install", "-q", "numpy>=1.26", "setuptools>=77", "wheel", *needs)
        where = run(own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        built = Path(place, "built")
        built.mkdir()
        with set_up.locked(ROOT):
            set_up.workplace().mkdir(exist_ok=True)
            try:
                wheel = set_up.build_wheel(own, Path(where, "nvidia", "cu13"), built)
                return set_up.keep_wheel(wheel, folder)
            finally:
                shutil.rmtree(set_up.workplace(), ignore_errors=True)


def check(archive: Path, python: Path, wheel_of_pycuda: Path) -> None:
    """Install one of the archives where nothing is, use it, remove it."""
    with tempfile.TemporaryDirectory() as place:
        home, links = Path(place, "home"), Path(place, "links")
        home.mkdir()
        links.mkdir()
        shutil.copy(archive, links)
        env = {name: v for name, v in os.environ.items() if not LEFT_OUT.match(name)}
        env |= {"HOME": str(home), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        run(python, "-m", "venv", Path(place, "env"), env=env)
        own = Path(place, "env", "bin", "python")
        clean = installed(own, env)
        pip = own, "-m", "pip"
        named = f"{NAME}=={archive.name.removesuffix('.tar.gz').split('-')[1]}"
        run(*pip, "install", "-q", "--find-links", links, named, wheel_of_pycuda, cwd=home, env=env)
        told = [f"{archive.name}, {run(own, '--version')}"]
        told.append(run(own, "-m", "pymm.doctor", cwd=home, env=env))
        for device in ("cpu:2", "simulator"):
            told.append(run(own, "-c", PRODUCT, device, cwd=home, env=env))
        assert str(Path(place, "env")) in told[-1], f"another pymm was imported: {told[-1]}"
        run(*pip, "uninstall", "-q", "-y", NAME, cwd=home, env=env)
        left = {name for name in installed(own, env) - clean if "pymm" in name.lower()}
        if left:
            sys.exit(f"{archive.name} leaves after its removal: {', '.join(sorted(left))}")
        print("\n".join(told), "removed: nothing is left", sep="\n", end="\n\n", flush=True)


def installed(python: Path, env: dict[str, str]) -> set[str]:
    """Every file of an environment."""
    folder = python.parents[1]
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    main()
