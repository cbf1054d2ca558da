"""The generated page of results says what its CSV says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import class_tables  # noqa: E402
import populations  # noqa: E402
import results  # noqa: E402
import symmetric  # noqa: E402
import tables  # noqa: E402

from pymm.core.problem import Problem  # noqa: E402
from pymm.core.shapes import class_problems  # noqa: E402
from pymm.measure import results as schemas  # noqa: E402


def row(ratio, dtype="f32", layout="NN", name="large", extent="2048", **more):
    values = {
        "time": "2026-11-21T17:00:00+00:00",
        "device": "nvidia-h200",
        "class": name,
        "dtype": dtype,
        "layout": layout,
        "m": extent,
        "n": extent,
        "k": extent,
        "us": "100",
        "config": "a-MB1",
        "outcome": "ok",
        "cublas_us": "110",
        "cublaslt_us": "120",
        "gflops": "50000",
        "peak": "0.75",
        "ratio": str(ratio),
        "spread": "0.01",
        "rms": "1e-7",
    }
    return dict.fromkeys(schemas.CLASSES.columns, "") | values | more


def test_the_page_is_what_the_csv_says():
    """`python benchmarks/results.py` would change nothing."""
    command = [sys.executable, "benchmarks/results.py", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


def whole(ratio, dtype="f32", name="large", layout="NN"):
    """As many rows as the class has products, with this geometric mean."""
    count = len(class_problems((name,), (dtype,), (layout,)))
    ratios = [ratio * 2, ratio / 2, *[ratio] * (count - 2)]
    return [row(r, dtype, layout, name, extent=str(i)) for i, r in enumerate(ratios)]


def test_classes_are_judged_by_their_geometric_means():
    rows = [*whole(1.2), *whole(1.0, layout="TT"), *whole(1.3, layout="NT")]
    rows += [*whole(1.06, name="small"), *whole(1.24, name="odd"), *whole(2.0, "f16_f32")]
    rows += whole(9.0, name="rank-k")[:-1]
    lines = class_tables.means(rows)
    find = {tuple(line.split(" | ")[:2]): line for line in lines if line.startswith("| ")}
    large = find["| f32", "large"]
    assert "| 1.1 | 1.13 | **1.20** | **1.30** |  | **1.00** | goal | floor |" in large
    assert find["| f32", "small"].endswith("| 1.44 | 1.6 | 1.06 |  |  |  | missed |  |")
    assert find["| f32", "odd"].endswith("| **1.24** |  |  |  | floor |  |")
    assert find["| f32", "rank-k"].endswith("| 9.00 (2 of 3) |  |  |  | incomplete |  |")
    assert find["| f16_f32", "large"].endswith("|  |  | 2.00 |  |  |  |  |  |")


def test_the_summary_has_all_layouts_and_of_random_products_the_last_seed():
    rows = [*whole(1.0), *whole(4.0, layout="TT"), *drawn([3.0], "random-7")]
    rows += [*drawn([1.0, 1.5], "random-8"), *whole(1.5, "tf32x3", "2048")]
    rows += [row("", "f64", name="large", outcome="wrong"), row(2.0, "f64", extent="4096")]
    lines = class_tables.summary(rows)
    (large,) = [line for line in lines if line.startswith("| squares of 2048")]
    assert large.endswith("| 2.00 |  |  |  | 2026-11-21 |"), (
        "a class with a failed product has no mean"
    )
    (random,) = [line for line in lines if line.startswith("| 100 random products")]
    assert random.endswith("| 1.49 (1.00) |  |  |  | 2026-11-21 |")
    assert len({line.count("|") for line in lines}) == 1


def test_the_summary_shows_the_last_draw_of_which_all_products_were_measured():
    rows = [*drawn([2.0], "random-7"), *drawn([3.0], "random-8"), *drawn([9.0], "random-9")[:-1]]
    rows += drawn([1.0], "random-7", "f64")[:-1]
    rows += drawn([4.0], "random-7", "tf32", time="2026-11-24T01:00:00+00:00")
    failed = drawn([5.0], "random-10")
    rows += [*failed[:-1], failed[-1] | {"outcome": "compile_failed", "ratio": ""}]
    lines = class_tables.summary(rows)
    (random,) = [line for line in lines if line.startswith("| 100 random products")]
    assert random.endswith("| 3.00 (3.00) |  |  | 4.00 (4.00) | 2026-11-21 to 2026-11-24 |")


def test_emulated_types_are_beside_sgemm_and_symmetric_ones_beside_the_fastest():
    rows = [row(0.9, "emulated", name="2048", us="50", cublas_us="185")]
    rows += whole(0.9, "emulated", "syrk-large", "NT")
    lines = class_tables.means(rows)
    assert "| emulated | 2048 | 3.6 | 4 | **3.70** |  |  |  | floor |  |" in lines
    assert "| emulated | syrk-large |  |  |  | 0.90 |  |  |  |  |" in lines


def test_triton_stands_beside_the_classes_it_was_measured_in():
    rows = [row(1.0) | {"triton_ratio": r} for r in ("2", "8", "")]
    assert "| f32 | large | NN | 2 | 4.00 |" in class_tables.beside_triton(rows)
    assert class_tables.beside_triton([row(1.0) | {"triton_ratio": ""}]) == []


def test_a_failed_product_fails_its_class():
    rows = [row(2.0), row("", extent="8192", outcome="wrong")]
    (line,) = [line for line in class_tables.means(rows) if line.startswith("| f32")]
    assert "failed" in line and "2.00" not in line
    assert any("8192 x 8192 x 8192 | wrong" in line for line in class_tables.products(rows))


def test_the_last_row_of_a_product_counts():
    rows = [row(1.0), row(1.1, extent="4096"), row(1.2)]
    assert [r["ratio"] for r in class_tables.latest(iter(rows))] == ["1.1", "1.2"]
    page = results.document(rows)
    assert any("3 products, 0 of them failed" in line for line in page)


def test_what_a_call_costs_is_what_was_measured_last():
    row = {"arrays": "CuPy", "call": "plan()", "us": "3", "quartile_1": "2.5", "quartile_3": "4"}
    lines = results.calls([row | {"us": "9"}, row])
    assert lines[-1] == "| CuPy | plan() | 3 | 2.5 to 4 |" and "| 9 |" not in "".join(lines)


def test_a_cpu_beside_numpy_says_what_is_reached():
    def rows(size, first, numpy, plan, matmul, turn):
        named = (("own", "NumPy", numpy), ("own", "plan", plan))
        named += (("own", "matmul", matmul), ("shared", "plan", turn), ("shared", "NumPy", 1))
        start = {"time": "2026-11-23T14:30:00+00:00", "dtype": "f32", "m": size}
        return [start | dict(process=p, call=c, us=str(us)) for p, c, us in named[first:]]

    lines = tables.beside_numpy(
        [*rows("16", 0, 3, 3, 3, 3), *rows("16", 0, 1, 2, 2, 3), *rows("64", 0, 1, 2, 2, 3.1)]
        + [*rows("128", 0, 97, 98, 99, 98), *rows("256", 1, 1, 1, 1, 1)]
    )
    assert "| f32 | 16 | 1 | 2 | 2 | 0.50 | **0.50** | 3 | **1.50** |" in lines
    assert "| f32 | 64 | 1 | 2 | 2 | 0.50 | 0.50 | 3.1 | 1.55 |" in lines
    assert "| f32 | 128 | 97 | 98 | 99 | 0.99 | 0.98 | 98 | **1.00** |" in lines
    assert lines[-1] == "| f32 | 256 | not measured | | | | | | |"


@pytest.mark.simulator
def test_calls_are_measured_where_pycuda_is(tmp_path):
    """The command with PyCUDA's arrays, in the simulator: a row for each of pymm's calls."""
    file = tmp_path / "calls.csv"
    command = [sys.executable, "benchmarks/calls.py", "--rounds", "3", "--commit", "abc"]
    subprocess.run([*command, "--csv", str(file)], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    rows = [row for row in results.inputs.rows_of(file) if row["arrays"] == "PyCUDA"]
    assert [row["call"] for row in rows][:2] == ["plan()", "pymm.matmul(a, b, out=c)"]
    assert all(float(row["us"]) > 0 and row["commit"] == "abc" for row in rows)


def test_unseen_shapes_by_type_and_all_together():
    empty = {"cublas_us": "", "cublaslt_us": "", "nvmath_us": "", "found_us": "8", "slower": ""}
    rows = [
        {"seed": "4", "dtype": "f32", "of_fastest": "0.5", "of_default": "1"},
        {"seed": "5", "dtype": "f32", "of_fastest": "1", "of_default": "1.5", "cublas_us": "9"},
        {"seed": "5", "dtype": "f32", "of_fastest": "0.81", "of_default": "0.99", "nvmath_us": "6"},
        {"seed": "5", "dtype": "f64", "of_fastest": "0.9", "of_default": ""},
    ]
    rows[2] |= {"cublaslt_us": "7", "slower": "0.004"}
    lines = results.unseen([empty | row for row in rows])  # those of the last run
    assert "| f32 | 2 | 0.900 | 0.81 | 0.99 | 1 | 0.75 |" in lines
    assert "| f64 | 1 | 0.900 | 0.90 |  |  |  |" in lines
    assert lines[-1] == "| all | 3 | 0.900 | 0.81 | 0.99 | 1 | 0.75 |"


def test_tunings_of_one_product_are_compared():
    start = {"dtype": "f32", "layout": "NT", "m": "3", "n": "4", "k": "5"}
    last = [
        {"time": "2", "us": "10", "seconds": "26.2", "tried": "70", "config": "a"},
        {"time": "2", "us": "10.1", "seconds": "26.8", "tried": "82", "config": "b"},
        {"time": "2", "us": "10", "seconds": "26", "tried": "75", "config": "a"},
    ]
    rows = [start | {"time": "1", "us": "1", "seconds": "1", "tried": "1", "config": "c"}]
    lines = results.repeated([*rows, *(start | row for row in last)])  # those of the last run
    assert lines[-1] == "| f32 | NT | 3 x 4 x 5 | 3 | 27 | 70 to 82 | 2 | 1.0100 |"


def symmetric_rows(dtype, ours, library):
    """Every product of the class, `library` / `ours` the ratio beside the whole product."""
    return [
        row(
            1.1,
            dtype,
            layout,
            "syrk-large",
            extent=str(n),
            us=str(ours),
            cublas_us=str(library),
            cublaslt_us=str(library + 1),
        )
        for layout in ("NT", "TN")
        for n in (4096, 6144, 8192, 10500)
    ]


def test_symmetric_products_are_judged_beside_the_whole_product():
    rows = [*symmetric_rows("f32", 100, 190), *symmetric_rows("f64", 100, 160)]
    lines = list(symmetric.beside_gemm(rows))
    assert "| f32 | syrk-large | 1.8 | 1.90 | 1.90 | 1.90 | floor |" in lines
    assert "| f64 | syrk-large | 1.7 | 1.60 | 1.60 | 1.60 | missed |" in lines
    (line,) = [x for x in symmetric.beside_gemm(rows[:3]) if x.startswith("| f32")]
    assert line.endswith("| 1.90 |  | 1.90 | 3 of 8 |")
    rows[0] |= {"outcome": "wrong", "us": ""}
    assert any("1 of 8 failed" in line for line in symmetric.beside_gemm(rows))


def transposed(dtype, n, k, name, milliseconds, variant="", outcome="ok"):
    """A row of the suite, as `pymm.suites` writes it."""
    timed, rate = {}, Problem(n, n, k, dtype, True, False, op="syrk").flops / 1e6
    if milliseconds:
        timed = {"seconds": f"{milliseconds * 1e-3:.9g}", "gflops": f"{rate / milliseconds:.6g}"}
    return (
        dict.fromkeys(schemas.EXPERIMENTS.columns, "")
        | {
            "schema": "1",
            "suite": "o3",
            "op": "syrk",
            "dtype": dtype,
            "layout": "TN",
            "m": str(n),
            "n": str(n),
            "k": str(k),
            "name": name,
            "variant": variant,
            "quantity": "kernel",
            "outcome": outcome,
            "error": "0.01" if variant else "",
        }
        | timed
    )


def test_products_with_the_transpose_stand_in_two_tables_a_type():
    rows = [
        transposed("f64", 500, k, *who)
        for k in (500, 250)
        for who in (
            ("00_naive", 8.0, "default"),
            ("03_register_tile", 3.0, "fixed"),
            ("06_tensor_f64", 0.5, "chosen"),
            ("09_tma_f64", 1.0, "chosen"),
            ("cublas", 2.0),
            ("cublaslt", 1.8),
            ("cublas_syrk", 1.5),
            ("cublas_syrk_mirror", 1.7),
        )
    ]
    rows += [
        transposed("f32", 1500, 1500, "08_tma_f32", 0, "chosen", "wrong"),
        transposed("f32", 1500, 1500, "cublas", 2.0),
    ]
    lines = symmetric.transposes(rows)
    assert [x for x in lines if x.startswith("###")] == [
        "### A of N x N, f64",
        "### A of N/2 x N, f64",
        "### A of N x N, f32",
    ]
    heads, first = (next(x for x in lines if x.startswith(start)) for start in ("| N ", "| 500 "))
    cells = dict(zip(heads.split(" | "), first.split(" | "), strict=True))
    assert cells["ms"] == "1" and cells["pymm.syrk"] == f"{500 * 501 * 500 / 1e-3 / 1e9:.0f}"
    assert cells["cuBLAS gemm / pymm"] == "1.80" and cells["cuBLAS syrk, one half / pymm"] == "1.50"
    assert cells["with its mirror / pymm"] == "1.70" and cells["00_naive / pymm"] == "8.00"
    assert cells["48 x 48 tile / pymm"] == "3.00" and cells["error |"] == "0.01 |"
    assert any(line.startswith("| 1500 | wrong |") for line in lines)
    widths = {line.count("|") for line in lines if line.startswith(("| 500", "| N ", "| mean"))}
    assert len(widths) == 2, "one width a table"
    assert symmetric.transposes(row | {"suite": "o1"} for row in rows) == []


@pytest.mark.parametrize("dtype", list(class_tables.GOALS))
def test_every_goal_names_a_class(dtype):
    from pymm.core.shapes import shapes_of

    assert list(class_tables.GOALS[dtype]) == list(shapes_of(dtype))


def drawn(ratios, name="random-7", dtype="f32", **more):
    """Rows of a population's products with these ratios, in order; the rest have the last."""
    products = [p for _, p in class_problems((name,), (dtype,), ("NN", "NT", "TN", "TT"))]
    ratios = [*ratios, *[ratios[-1]] * (len(products) - len(ratios))]
    return [
        row(ratio, dtype, p.layout, name, reason="default", batch=str(p.batch), **more)
        | {axis: str(getattr(p, axis)) for axis in "mnk"}
        for ratio, p in zip(ratios, products, strict=True)
    ]


def judged(rows):
    """The line of each population, then those of products below their floor."""
    lines = populations.populations(rows, "x.csv")
    return [line for line in lines if line.startswith("| ") and not line.startswith("| type")]


def test_populations_are_judged_by_their_mean_and_their_worst_product():
    for ratios, said in (
        ([1.0, 1.4], "goal"),
        ([0.9, 1.2], "floor"),
        ([0.899, 1.4], "missed"),
        ([1.1], "missed"),
    ):
        (line, *below) = judged(drawn(ratios))
        assert line.endswith(f"| {said} |") and "| random-7 | 1.15 | 1.3 | 0.9 | 100 |" in line
        assert len(below) == (ratios[0] < 0.9)


def test_populations_that_are_not_whole_or_not_untuned_reach_nothing():
    rows = drawn([1.4])
    assert judged(rows[:60])[0].endswith("| 60 of 100 |")
    rows[3] |= {"reason": "tuned for this problem on this GPU (2026-11-21, 5.7 us)"}
    assert judged(rows)[0].endswith("| 1 are tuned |")
    rows[5] |= {"outcome": "wrong", "ratio": "", "us": ""}
    assert judged(rows)[0].endswith("| 1 failed |")
    assert judged([rows[5]])[0].endswith("|  |  |  | 1 failed |")


def test_products_of_populations_below_their_floor_are_named():
    rows = [*drawn([0.8, 0.7, 1.2], "batch", "f64"), *drawn([1.2], "syrk-uneven-5", "f64")]
    (batch, uneven, worst, next_worst) = judged(rows)
    assert "| 8 | 1.07 | 0.7 | NN 32 x 32 x 32, batch of 4000 | missed |" in batch
    assert "| syrk-uneven-5 | 1.1 | 1.5 |  | 24 | 1.20 | 1.2 |" in uneven
    assert worst == "| f64 | batch | NN 32 x 32 x 32, batch of 4000 | 100 | 70 | 0.70 | a MB1 |"
    assert "10000" in next_worst
    assert judged(drawn([0.1], "llm", "f32"))[0].endswith("|  |"), "no floor for this type"


def test_the_page_takes_populations_from_a_file_of_their_own(tmp_path, monkeypatch):
    """Rows of earlier schemas in one file, of the newest in the other."""
    new, old = tmp_path / "populations.csv", tmp_path / "classes.csv"
    schemas.CLASSES.append(new, drawn([1.4]))
    names = [name for name in schemas.CLASSES.columns if name not in schemas.CLASSES.added]
    schema = schemas.Schema(3, tuple(names))
    schema.append(old, [{name: r[name] for name in names} | {"schema": "3"} for r in whole(1.2)])
    files = {"FILE": old, "POPULATIONS": new, "SUITES": [], "CPUS": []}
    files |= dict.fromkeys(("UNSEEN", "REPEATED", "CALLS", "LADDER"), tmp_path / "none.csv")
    for name, value in (files | {"ROOT": tmp_path}).items():
        monkeypatch.setattr(results, name, value)
    lines = results.page().splitlines()
    assert "## Populations" in lines
    assert any(line.startswith("| f32 | random-7 | 1.15 |") for line in lines)
    assert any(line.startswith("| f32 | large | 1.1 |") for line in lines)
    assert not any(line.startswith("| f32 | NN | random-7") for line in lines)
