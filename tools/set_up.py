"""Makes .venv: everything that the project needs, or nothing to do when it is there.

Run by `make` with the system's Python, 3.11 or newer, and its standard library alone. PyCUDA has
no wheels, and its own build wants a driver and a toolkit; here it is built with neither, from the
toolkit's wheels, and kept for the next checkout in the user's cache directory.
"""

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYCUDA = "2026.1"  # the version that the simulator is tested with

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


def say(text):
    """A line for the person who waits."""
    print(f"set-up: {text}", flush=True)


def run(*command, cwd=ROOT, env=None):
    """A command whose output is shown only if it fails."""
    words = [str(word) for word in command]
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_USER")}
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
        tail = "\n".join(done.stdout.splitlines()[-30:])
        raise SetUpError(f"{tail}\nset-up: this command failed: {shlex.join(words)}")
    return done.stdout


def compiler():
    """The C++ compiler's command: $CXX, g++ or clang++."""
    named = os.environ.get("CXX")
    for command in [named] if named else ["g++", "clang++"]:
        if shutil.which(shlex.split(command)[0]):
            return command
    what = f"the C++ compiler of $CXX, {named}, is not there" if named else "no C++ compiler"
    raise SetUpError(f"{what}: apt install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)")


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


def digest(*parts):
    """Short name of what something is made from."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def environment_key():
    """Changes whenever .venv must be made anew: a moved checkout, another Python, other needs."""
    sources = [ROOT / "pyproject.toml", ROOT / "setup.py", Path(__file__)]
    texts = [path.read_text() for path in sources]
    return digest(ROOT, sys.base_prefix, sys.version, *texts)


def ready(venv, key):
    """True if `venv` was finished for `key` and its interpreter still exists."""
    stamp = venv / "ready"
    return stamp.is_file() and stamp.read_text() == key and (venv / "bin/python").exists()


def write_stamp(venv, key):
    """The last step; what is interrupted before it is made anew by the next set-up."""
    part = venv / "ready.part"
    part.write_text(key)
    os.replace(part, venv / "ready")


def wheel_directory():
    """Where the PyCUDA wheel for this Python and this recipe is kept for every checkout."""
    cache = os.environ.get("PYMM_CACHE_DIR")
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = Path(cache) if cache else Path(shared) / "pymm"
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
    part = directory / f"{wheel.name}.{os.getpid()}.part"
    shutil.copyfile(wheel, part)
    os.replace(part, directory / wheel.name)
    return directory / wheel.name


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
        archive.extractall(folder, filter="data")
    driver, cxx = folder / "libcuda.so", compiler()
    empty_driver(driver)
    siteconf = SITECONF.format(toolkit=str(toolkit), driver=str(driver))
    (folder / name / "siteconf.py").write_text(siteconf)
    tools = {"CC": os.environ.get("CC", cxx), "CXX": cxx}
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
    with tempfile.TemporaryDirectory(prefix="pymm-pycuda-") as name:
        folder = Path(name)
        try:
            only = ["--no-deps", "--only-binary=pycuda", f"pycuda=={PYCUDA}"]
            run(python, "-m", "pip", "download", *only, "-d", folder / "index")
        except SetUpError:
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


def make_environment(venv):
    """Everything from an empty folder on: environment, wheels, PyCUDA, this checkout."""
    say("making .venv")
    run(sys.executable, "-m", "venv", "--clear", venv)
    python = venv / "bin/python"
    say("installing packages and the CUDA toolkit's wheels: 350 MB, half a minute to some minutes")
    wheels = [need for need in requirements("cuda") if not need.startswith("pycuda")]
    install = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    run(*install, "numpy>=1.26", "wheel", *wheels, *requirements("test"))
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    toolkit = Path(run(python, "-c", where).strip(), "nvidia", "cu13")
    run(*install, pycuda_wheel(python, toolkit))
    say("installing this checkout")
    run(*install, "--no-build-isolation", "--editable", f"{ROOT}[cuda,report,test]")
    run(python, "-m", "pip", "check")


def set_up(venv=ROOT / ".venv"):
    """Make `venv` unless it is there. Two set-ups of one checkout wait for each other."""
    key = environment_key()
    if ready(venv, key):
        return
    check_machine()
    lock = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready(venv, key):
            return
        (venv / "ready").unlink(missing_ok=True)
        make_environment(venv)
        write_stamp(venv, key)
        say("done")
    finally:
        os.close(lock)


def main():
    """Exit status 1 with the reason when the machine or the index lacks something."""
    try:
        set_up()
    except SetUpError as error:
        sys.exit(f"set-up: {error}")
    except KeyboardInterrupt:
        sys.exit("set-up: interrupted; the next make begins it anew")


if __name__ == "__main__":
    main()
