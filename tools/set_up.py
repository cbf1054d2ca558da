"""Makes .venv: everything that the project needs, or nothing to do when it is there.

Run by `make` with the system's Python, 3.11 or newer, and its standard library alone. PyCUDA has
no wheels, and its own build wants a driver and a toolkit; here it is built with neither, from the
toolkit's wheels, and kept for the next checkout in the user's cache directory. A step that was
done is not done again after a later one has failed.
"""

import csv
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYCUDA = "2026.1"  # the version that the simulator is tested with
MPICH = "mpich>=5"  # for tests: a second MPI library, in a folder of its own for its own mpirun

# Free space that an empty .venv takes in the end, with what pip unpacks meanwhile, and a wheel.
VENV_BYTES, WHEEL_BYTES = 3 << 29, 16 << 20

# libcuda.so.1 comes with the driver, which a machine that builds may not have. An empty library
# of that name is enough to link with: a shared object may leave symbols undefined, the driver (or
# the simulator) resolves them when it is loaded. Without --no-as-needed the linker would drop the
# library that resolves nothing, and the import of PyCUDA would then fail.
SITECONF = """\
CUDA_ROOT = {toolkit!r}
CUDA_ENABLE_CURAND = False
CUDADRV_LIBNAME = []
CXXFLAGS = ["-g0"]
LDFLAGS = ["-Wl,-s", "-Wl,--no-as-needed", {driver!r}]
"""


class SetUpError(Exception):
    """What is wrong, and the line that mends it."""


class CommandFailed(SetUpError):
    """A command that ended with another status than 0, and the end of its output."""


def say(text):
    """A line for the person who waits."""
    print(f"set-up: {text}", flush=True)


def run(*command, cwd=ROOT, env=None):
    """A command whose output is shown only if it fails."""
    words = [str(word) for word in command]
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_USER")}
    clean |= {"TMPDIR": str(workplace())} if workplace().is_dir() else {}
    done = subprocess.run(
        words,
        cwd=cwd,
        env=clean | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        if any(os.strerror(number) in done.stdout for number in FULL):
            raise disk_full()
        tail = "\n".join(done.stdout.splitlines()[-30:])
        raise CommandFailed(f"{tail}\nset-up: this command failed: {shlex.join(words)}")
    return done.stdout


def compiler():
    """The C++ compiler's command: $CXX, g++ or clang++."""
    named = os.environ.get("CXX", "").strip()
    for command in [named] if named else ["g++", "clang++"]:
        try:
            program = shlex.split(command)[0]
        except ValueError as error:
            raise SetUpError(f"$CXX, {named}, is no command: {error}") from error
        if shutil.which(program):
            return command
    what = f"the C++ compiler of $CXX, {named}, is not there" if named else "no C++ compiler"
    raise SetUpError(f"{what}: apt install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)")


# Disks


FULL = (errno.ENOSPC, errno.EDQUOT)


def workplace():
    """Where commands keep their temporary files: on the disk of .venv, whatever TMPDIR says, and
    removed by the next set-up if this one is killed.
    """
    return ROOT / ".setup"


def places():
    """What is written, with the bytes that it needs and the line that moves it."""
    return (
        (ROOT / ".venv", VENV_BYTES, "move the checkout to another disk"),
        (wheel_directory(), WHEEL_BYTES, "set PYMM_CACHE_DIR to a directory on another one"),
    )


def existing(path):
    """`path`, or the nearest of its parents that is there."""
    return next(place for place in (path, *path.parents) if place.is_dir())


def check_disks():
    """Refuse a disk that cannot be written or has too little space, before anything is done."""
    for path, needed, remedy in places():
        place = existing(path)
        if not os.access(place, os.W_OK | os.X_OK):
            raise SetUpError(f"{place} cannot be written, and {path} is to be made: {remedy}")
        free = shutil.disk_usage(place).free
        if free < needed and not path.exists():
            have, want = f"{free / 2**20:.0f} MiB", f"{needed / 2**20:.0f}"
            raise SetUpError(f"{path} takes {want} MiB and its disk has {have} left: {remedy}")


def disk_full():
    """The error of a disk that became full: the one with the least space left."""
    path, _, remedy = min(places(), key=lambda place: shutil.disk_usage(existing(place[0])).free)
    return SetUpError(f"no space left on the disk of {path}: free some, or {remedy}")


def check_machine():
    """Refuse a machine that lacks what pip cannot bring, with the line that mends it."""
    version = "{}.{}".format(*sys.version_info)
    if sys.version_info < (3, 11):  # noqa: UP036 the one line that an older Python does run
        reason = f"pymm needs Python 3.11 or newer and {sys.executable} is {version}"
        raise SetUpError(f"{reason}: name a newer one, as in make PYTHON=python3.12 test")
    if not sys.platform.startswith("linux"):
        raise SetUpError(f"the set-up knows Linux only, this is {sys.platform}: pip install .")
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python{version}-venv"
        raise SetUpError(f"Python cannot make environments: apt install {package} (Debian, Ubuntu)")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        debian, fedora = f"python{version}-dev", f"python{version}-devel"
        hint = f"apt install {debian} (Debian, Ubuntu) or dnf install {fedora} (Fedora)"
        raise SetUpError(f"Python's headers are not there: {hint}")
    compiler()
    check_disks()


def digest(*parts):
    """Short name of what something is made from."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def environment_key():
    """Changes whenever .venv must be made anew: a moved checkout, another Python, other needs."""
    sources = [ROOT / "pyproject.toml", ROOT / "setup.py", Path(__file__)]
    texts = [path.read_text() for path in sources]
    return digest(ROOT, sys.base_prefix, sys.version, *texts)


def ready(venv, key, step="ready"):
    """True if `venv` was finished for `key`, or as far as `step`, and its interpreter still exists
    and of each package that was there by then a file.
    """
    try:
        stamp = json.loads((venv / step).read_text())
        names = stamp["files"] if stamp["key"] == key else [""]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all((venv / name).is_file() for name in ["bin/python", *names])


def write_stamp(venv, key, name="ready"):
    """The last step of all, or of those that are not done again when a later one fails."""
    part = venv / f"{name}.part"
    part.write_text(json.dumps({"key": key, "files": witnesses(venv)}))
    os.replace(part, venv / name)


def witnesses(venv):
    """A file of each installed package, relative to `venv`: of those without version in their names
    the first, so that a package may be upgraded by hand.
    """
    found = []
    for record in sorted(venv.glob("lib/python*/site-packages/*.dist-info/RECORD")):
        site = record.parents[1].relative_to(venv)
        with record.open(encoding="utf-8", newline="") as file:
            names = [row[0] for row in csv.reader(file) if row]
        own = [n for n in names if ".dist-info/" not in n and "__pycache__" not in n]
        own = [n for n in own if not n.startswith(("..", "/")) and (venv / site / n).is_file()]
        modules = [n for n in own if n.endswith("__init__.py")]
        found += [str(site / name) for name in (sorted(modules, key=len) or own)[:1]]
    return found


def wheel_directory():
    """Where the PyCUDA wheel for this Python and this recipe is kept for every checkout."""
    cache, shared = os.environ.get("PYMM_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(cache) if cache else Path(shared or Path.home() / ".cache") / "pymm"
    except RuntimeError as error:
        raise SetUpError("this user has no home directory: set PYMM_CACHE_DIR") from error
    abi = sysconfig.get_config_var("SOABI")
    return base / "wheels" / f"pycuda-{PYCUDA}-{abi}-{digest(SITECONF)}"


def loads_driver(wheel):
    """True if a PyCUDA wheel is whole and its extension asks for libcuda.so.1 when loaded."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            whole = archive.testzip() is None
            drivers = [name for name in archive.namelist() if name.startswith("pycuda/_driver")]
            return whole and any(b"\0libcuda.so.1\0" in archive.read(name) for name in drivers)
    except (OSError, zipfile.BadZipFile):
        return False


def kept_wheel(directory):
    """The wheel in `directory` if it is good, else None."""
    return next(filter(loads_driver, sorted(directory.glob("pycuda-*.whl"))), None)


def keep_wheel(wheel, directory):
    """Put a good wheel into `directory`, whole or not at all."""
    if not loads_driver(wheel):
        raise SetUpError(f"{wheel.name} does not load libcuda.so.1: the linker dropped it")
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):  # so whoever began one of these is gone
        for left in directory.glob("*.part"):
            left.unlink()
        part = directory / f"{wheel.name}.part"
        shutil.copyfile(wheel, part)
        os.replace(part, directory / wheel.name)
    return directory / wheel.name


@contextmanager
def locked(directory):
    """One process at a time. The system lets go of the lock when a process ends, however."""
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def empty_driver(path):
    """A shared library with the driver's name and nothing in it."""
    name = "-Wl,-soname,libcuda.so.1"
    run(*shlex.split(compiler()), "-shared", "-x", "c++", os.devnull, name, "-o", path)


def build_wheel(python, toolkit, folder):
    """Build PyCUDA from its sdist inside `folder`, with the headers of the toolkit's wheels."""
    name = f"pycuda-{PYCUDA}"
    fetch = ["--no-deps", "--no-build-isolation", "--no-binary=pycuda", f"pycuda=={PYCUDA}"]
    run(python, "-m", "pip", "download", *fetch, "-d", folder)
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        # Python before 3.11.4 has no filters. Nothing is lost: what is unpacked is run.
        filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **filtered)
    driver, cxx = folder / "libcuda.so", compiler()
    empty_driver(driver)
    siteconf = SITECONF.format(toolkit=str(toolkit), driver=str(driver))
    (folder / name / "siteconf.py").write_text(siteconf)
    tools = {"CC": os.environ.get("CC", "").strip() or cxx, "CXX": cxx}
    flags = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", folder]
    run(python, "-m", "pip", "wheel", *flags, folder / name, env=tools)
    return next(folder.glob("pycuda-*.whl"))


def pycuda_wheel(python, toolkit):
    """A PyCUDA wheel: the kept one, the package index's, or one built here."""
    directory = wheel_directory()
    wheel = kept_wheel(directory)
    if wheel:
        say(f"PyCUDA {PYCUDA} from {directory}")
        return wheel
    folder = workplace() / "pycuda"
    folder.mkdir(parents=True)
    try:
        only = ["--no-deps", "--only-binary=pycuda", f"pycuda=={PYCUDA}"]
        run(python, "-m", "pip", "download", *only, "-d", folder / "index")
    except CommandFailed:
        pass  # the index has the sdist alone
    wheel = kept_wheel(folder / "index")
    if not wheel:
        say(f"building PyCUDA {PYCUDA}: about 2 minutes, once per user and Python version")
        wheel = build_wheel(python, toolkit, folder)
    return keep_wheel(wheel, directory)


def requirements(extra):
    """The requirements of one extra, as pyproject.toml lists them."""
    import tomllib  # Python 3.11: older ones must get as far as the message about their age

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"][extra]


def make_environment(venv, key):
    """Everything from an empty folder on: environment, wheels, PyCUDA, this checkout. Begins behind
    the wheels if they were installed for `key` and a later step failed.
    """
    python = venv / "bin/python"
    install = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    if not ready(venv, key, "packages"):
        say("making .venv")
        (venv / "packages").unlink(missing_ok=True)
        run(sys.executable, "-m", "venv", "--clear", venv)
        say(
            "installing packages and the CUDA toolkit's wheels: 350 MB, half a minute to some "
            "minutes"
        )
        wheels = [need for need in requirements("cuda") if not need.startswith("pycuda")]
        run(*install, "numpy>=1.26", "wheel", *wheels, *requirements("test"))
        run(*install, "--ignore-installed", "--prefix", venv / "mpich", MPICH)
        write_stamp(venv, key, "packages")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    toolkit = Path(run(python, "-c", where).strip(), "nvidia", "cu13")
    run(*install, "--force-reinstall", "--no-deps", pycuda_wheel(python, toolkit))
    say("installing this checkout")
    run(*install, "--no-build-isolation", "--editable", f"{ROOT}[cuda,report,test]")
    run(python, "-m", "pip", "check")


def set_up(venv=ROOT / ".venv"):
    """Make `venv` unless it is there. Two set-ups of one checkout wait for each other."""
    key = environment_key()
    if ready(venv, key):
        return
    check_machine()
    with locked(ROOT):
        if ready(venv, key):
            return
        if (venv / "ready").exists():  # something is gone or other needs: nothing there is trusted
            (venv / "packages").unlink(missing_ok=True)
            (venv / "ready").unlink()
        shutil.rmtree(workplace(), ignore_errors=True)
        workplace().mkdir()
        try:
            make_environment(venv, key)
        finally:
            shutil.rmtree(workplace(), ignore_errors=True)
        write_stamp(venv, key)
        say("done")


def add_extra(extra, venv=ROOT / ".venv"):
    """Install the requirements of one extra that only some targets need, unless they are there."""
    set_up(venv)
    key = environment_key()
    if ready(venv, key, extra):
        return
    with locked(ROOT):
        if ready(venv, key, extra):
            return
        say(f"installing the packages of [{extra}]")
        install = [venv / "bin/python", "-m", "pip", "install", "--disable-pip-version-check"]
        run(*install, *requirements(extra))
        write_stamp(venv, key, extra)


def main(extras=()):
    """Make .venv and add `extras`. Exit status 1 with the reason when the machine or the index
    lacks something.
    """
    try:
        set_up()
        for extra in extras:
            add_extra(extra)
    except SetUpError as error:
        sys.exit(f"set-up: {error}")
    except OSError as error:
        sys.exit(f"set-up: {disk_full() if error.errno in FULL else error}")
    except KeyboardInterrupt:
        sys.exit("set-up: interrupted; the next make goes on from the last step that was done")


if __name__ == "__main__":
    main(sys.argv[1:])
