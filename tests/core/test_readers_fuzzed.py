"""Damaged files before every reader: it reads them, or says in one line which file is at fault.

Bytes of files as the tools write them are changed, cut, spliced and strewn with what has hurt a
reader before. `PYMM_FUZZ_INPUTS=400` with pytest tries 400 inputs for each reader.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import measured
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_fixtures import without_plots  # noqa: F401
from tuned import GOOD

from pymm.bench import classes
from pymm.bench.experiments.run import completed_steps
from pymm.core import files, shapes
from pymm.core.errors import StoreError
from pymm.core.inputs import BadInput
from pymm.measure import results as schemas
from pymm.report import chapters, compare, export, html, load, markdown, verify
from pymm.report.export import data_of
from pymm.selection import store
from pymm.tune import storage as studies
from pymm.tune import trial_log

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import class_tables  # noqa: E402
import results  # noqa: E402
import tables  # noqa: E402

#: Inputs a reader.
INPUTS = int(os.environ.get("PYMM_FUZZ_INPUTS", "40"))

#: What readers have stumbled over.
TOKENS = [
    *(b"inf", b"-inf", b"nan", b"1e400", b"-1e400", b"1e-400", b"0", b"-1", b"0.0", b"null", b"{}"),
    *(b"9" * 19, b"9" * 400, b"9" * 5000, "\u00b2".encode(), "\u0663".encode(), b"$\\frac{", b"$"),
    *(b"[" * 300, b"{" * 300, b'[{"a":' * 2000, b"- " * 50, b"&a ", b"*a", b"!!python/object:x "),
    *(b"\x00", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800"),
    *(b"\x1b[1m", b'"', b"'", b",", b",,", b"\n\n", b": ", b"{", b"}", b"[", b"]", b"\t", b"#"),
    *(b"<script>x</script>", b"`|", b"../../x", b"true", b"---\n", b"x" * 100, b"y" * 200_000),
    *(b"-b0", b"1e30", b"1e-30", b"9e29", b"1_0", b"0x10", "\u202e".encode(), "\ud7ff".encode()),
    *(b"{}\n", b'{"op_code":0}\n', b'{"op_code":4,"trial_id":9}\n', b"op_code", b"not_applicable"),
]

#: Fields, as they stand between what parts them.
FIELD = re.compile(rb"[^,:\s{}\[\]\"]+")

PLACE = st.integers(0, 2**20)
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("field"), PLACE, st.sampled_from(TOKENS)),
        st.tuples(st.just("insert"), PLACE, st.sampled_from(TOKENS)),
        st.tuples(st.just("delete"), PLACE, st.integers(1, 40)),
        st.tuples(st.just("repeat"), PLACE, st.integers(1, 400)),
        st.tuples(st.just("flip"), PLACE, st.integers(0, 255)),
        st.tuples(st.just("cut"), PLACE, st.just(0)),
        st.tuples(st.just("splice"), PLACE, PLACE),
        st.tuples(st.just("lines"), PLACE, st.just(0)),
        st.tuples(st.just("ends"), PLACE, st.just(0)),
    ),
    min_size=1,
    max_size=4,
)


def edited(content: bytes, edits: list, others: list[bytes]) -> bytes:
    """The bytes of a file after so many accidents."""
    for kind, place, what in edits:
        at = place % (len(content) + 1)
        if kind == "field" and (fields := list(FIELD.finditer(content))):
            field = fields[place % len(fields)]
            content = content[: field.start()] + what + content[field.end() :]
        elif kind == "insert":
            content = content[:at] + what + content[at:]
        elif kind == "delete":
            content = content[:at] + content[at + what :]
        elif kind == "repeat":
            content = content[: at + what] + content[at:]
        elif kind == "flip":
            content = content[:at] + bytes([what]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at]
        elif kind == "splice":
            other = others[what % len(others)]
            content = content[:at] + other[what % (len(other) + 1) :]
        elif kind == "lines":
            lines = content.splitlines(keepends=True) or [b""]
            line = lines[place % len(lines)]
            content = b"".join([*lines, line])
        elif kind == "ends":
            content = content.replace(b"\n", b"\r\n")
    return content


@dataclass(frozen=True)
class Reader:
    """One that reads a file: its name, a good file, and what is done with it. `errors` may be
    raised, with the file's name.
    """

    file: str
    good: Callable[[Path], None]
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...] = (BadInput,)


def csv_of(columns, maker, count=9):
    """Writes few rows, of all kinds that there are."""

    def write(path: Path) -> None:
        made = maker()
        measured.write(path, columns, made[:: max(1, len(made) // count)])

    return write


def facts(path: Path) -> None:
    about = {
        "slug": measured.SLUG,
        "name": "Test GPU 9",
        "kind": "cuda",
        "sms": 132,
        "capability": "9.0",
        "bandwidth": 3e12,
        "peak_flops": measured.PEAK,
    }
    path.write_text(json.dumps(about, indent=1))


def report_file(path: Path) -> None:
    folder = path.parent / measured.SLUG
    measured.write(folder / "ladder.csv", schemas.KERNELS.columns, measured.ladder())
    path.write_text(json.dumps(data_of(load.read_device(folder)), indent=1))


def a_study(path: Path) -> None:
    with studies.open_storage(path) as storage:
        found = studies.open_study(storage, "f32", {"source": "abc", "driver": "580"})
        for _ in range(3):
            trial = found.ask()
            found.tell(trial, trial.suggest_int("MB", 1, 9) * 1e-3)


def whole_report(path: Path) -> None:
    """Everything that is written of a folder, without drawings."""
    if path.suffix != ".csv":
        measured.write(path.parent / "ladder.csv", schemas.KERNELS.columns, measured.ladder()[:9])
    made = chapters.report(load.read_device(path.parent), figures=False)
    html.html(made)
    markdown.markdown(made, "report.html")
    json.dumps(made.data, allow_nan=False).encode()
    for notice in made.notices:
        assert "\n" not in notice and len(notice) < 2000


def compared(path: Path) -> None:
    """What `pymm report --compare` and `pymm verify` do with a report."""
    first = export.read_report(path)
    verify.eligible(first, "cuda")
    html.html(compare.comparison(first, first))


def resumed(path: Path) -> None:
    """A damaged journal is kept under another name, which is said."""
    said: list[str] = []
    with studies.open_storage(path, said.append) as storage:
        studies.open_study(storage, "f32", {"source": "abc", "driver": "580"})
    assert len(said) <= 1 and all(str(path) in line and "kept as" in line for line in said)


def classes_page(path: Path) -> None:
    found = class_tables.latest(class_tables.class_rows(path))
    if found:
        results.document(found)


def unseen_page(path: Path) -> None:
    results.unseen(results.unseen_rows(path))


#: What tables of README and RESULTS are made by.
TABLES = (tables.short_ladder, tables.ladder, tables.cpu)

BESIDE_NUMPY = """\
time,dtype,m,process,call,us
2026-11-23T14:30:00+00:00,f32,64,own,NumPy,6.4
2026-11-23T14:30:00+00:00,f32,64,own,plan,6.5
2026-11-23T14:30:00+00:00,f32,64,own,matmul,8
2026-11-23T14:30:00+00:00,f32,64,shared,plan,10
2026-11-23T14:30:00+00:00,f64,128,own,NumPy,50
"""

READERS = {
    "yaml": Reader("test-gpu-9.yaml", lambda path: path.write_text(GOOD), store.read),
    "classes": Reader(
        "classes.csv", csv_of(schemas.CLASSES.columns, measured.class_rows), whole_report
    ),
    "ladder": Reader("ladder.csv", csv_of(schemas.KERNELS.columns, measured.ladder), whole_report),
    "trials": Reader(
        "trials.csv", csv_of(schemas.TRIALS.columns, measured.trials, 44), whole_report
    ),
    "unseen": Reader("unseen.csv", csv_of(measured.UNSEEN, measured.unseen), whole_report),
    "calls": Reader("calls.csv", csv_of(measured.CALLS, measured.calls), whole_report),
    "suites": Reader(
        "suites.csv",
        csv_of(schemas.EXPERIMENTS.columns, lambda: measured.suites(sparse=48), 60),
        whole_report,
    ),
    "facts": Reader("device.json", facts, whole_report),
    "report": Reader("report.json", report_file, compared),
    "resumed classes": Reader(
        "c.csv", csv_of(schemas.CLASSES.columns, measured.class_rows), classes.measured
    ),
    "resumed suites": Reader(
        "s.csv",
        csv_of(schemas.EXPERIMENTS.columns, lambda: measured.suites(sparse=48)),
        completed_steps,
    ),
    "header": Reader(
        "h.csv",
        csv_of(schemas.KERNELS.columns, measured.ladder),
        lambda path: files.begun(path, schemas.KERNELS.columns),
    ),
    "shapes": Reader(
        "shapes.csv",
        csv_of(schemas.KERNELS.columns, measured.ladder),
        lambda path: shapes.parse_shapes(str(path)),
        (ValueError,),
    ),
    "trial log": Reader(
        "trials.csv",
        csv_of(schemas.TRIALS.columns, measured.trials),
        lambda path: list(trial_log.read_trials(path)),
    ),
    "journal": Reader("studies.log", a_study, resumed, (trial_log.ForeignFile,)),
    "results": Reader(
        "classes.csv", csv_of(schemas.CLASSES.columns, measured.class_rows), classes_page
    ),
    "results unseen": Reader("u.csv", csv_of(measured.UNSEEN, measured.unseen), unseen_page),
    "results repeated": Reader(
        "r.csv",
        csv_of(schemas.REPEATED.columns, measured.repeated),
        lambda path: results.repeated(results.repeated_rows(path)),
    ),
    "results suites": Reader(
        "s.csv",
        csv_of(
            schemas.EXPERIMENTS.columns,
            lambda: [row for row in measured.suites(sparse=48) if row["suite"] == "o3"],
        ),
        lambda path: results.transposes(results.suite_rows(path)),
    ),
    "tables": Reader(
        "l.csv",
        csv_of(schemas.KERNELS.columns, measured.ladder),
        lambda path: [of(tables.rows_of(path)) for of in TABLES],
    ),
    "threads": Reader(
        "t.csv",
        lambda path: path.write_text(BESIDE_NUMPY),
        lambda path: tables.beside_numpy(tables.calls_of(path)),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_named(tmp_path, without_plots, name):  # noqa: F811
    reader = READERS[name]
    path = tmp_path / measured.SLUG / reader.file
    path.parent.mkdir()
    reader.good(path)
    good = path.read_bytes()
    reader.read(path)
    others = [GOOD.encode(), b'{"schema": 1}\n', b"a,b\n1,2\n", good]

    @settings(
        max_examples=INPUTS,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(EDITS)
    def damaged(edits):
        path.write_bytes(edited(good, edits, others))
        try:
            reader.read(path)
        except (*reader.errors, StoreError) as failure:
            said = str(failure)
            assert str(path) in said and "\n" not in said and len(said) < 2000, said

    damaged()


@pytest.mark.parametrize("name", ["classes", "ladder", "trials", "suites"])
def test_a_damaged_file_is_drawn(tmp_path, name):
    """With all figures: an image that cannot be drawn of a row is a fault, too."""
    pytest.importorskip("matplotlib")
    reader = READERS[name]
    path = tmp_path / measured.SLUG / reader.file
    path.parent.mkdir()
    reader.good(path)
    good = path.read_bytes()

    @settings(
        max_examples=max(2, INPUTS // 20),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(EDITS)
    def damaged(edits):
        path.write_bytes(edited(good, edits, [good]))
        html.html(chapters.report(load.read_device(path.parent)))

    damaged()


BOMBS = """
import re, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
from pathlib import Path
from pymm.core import inputs
from pymm.core.errors import StoreError
from pymm.selection import store
for name in sys.argv[1:]:
    path = Path(name)
    reader = {".yaml": store.read, ".json": inputs.read_json, ".csv": inputs.rows_of}[path.suffix]
    try:
        reader(path)
    except inputs.BadInput as failure:
        print(failure)
    except StoreError as failure:
        print(failure)
most = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())  # of this program alone
print(int(most[1]) >> 10)
"""


def test_no_file_fills_the_memory(tmp_path):
    """Within 3 GiB of addresses and 600 MiB of memory, whatever the nesting."""
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    n = 2**20
    bombs = {
        "a.yaml": b"[" * 4 * n,
        "b.yaml": b"- " * n,
        "c.yaml": b"? " * n,
        "d.yaml": b"{a: " * n,
        "e.yaml": b"a: &a [x]\nb: [" + b"*a, " * n,
        "f.yaml": b"a" * 5 * n,
        "a.json": b"[" * 8 * n,
        "b.json": b'{"a":' * n,
        "c.json": b"9" * 8 * n,
        "d.json": b'"' + b"a" * 65 * n,
        "a.csv": b'a\n"' * n,
        "b.csv": b"a" * 8 * n,
        "c.csv": b'a\n"' + b"b\n" * 4 * n,
        "d.csv": b"\x00" * n,
    }
    for name, content in bombs.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-c", BOMBS, *(str(tmp_path / name) for name in bombs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    *told, mebibytes = done.stdout.splitlines()
    assert len(told) == len(bombs) and int(mebibytes) < 600
    for name, line in zip(bombs, told, strict=True):
        assert line.startswith(str(tmp_path / name)), line
