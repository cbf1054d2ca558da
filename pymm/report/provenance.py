"""What a device was measured with, and the commands that measure it again."""

from __future__ import annotations

import shlex

from pymm.report.content import rate
from pymm.report.load import ON_EVERY_DEVICE, Results, Row
from pymm.report.stats import OWN, device_name, display_name, peaks, timings

#: Fields of `device.json`, as reports show them.
DEVICE_FACTS = {
    "kind": "backend",
    "capability": "compute capability",
    "sms": "multiprocessors",
    "cores": "cores",
    "vector_bytes": "bytes per vector",
}


def environment(results: Results) -> list[tuple[str, str]]:
    """Device, software and files; every value that occurs."""
    rows = [row for kind in results.rows.values() for row in kind]
    rows = [row for row in rows if row.text("suite") not in ON_EVERY_DEVICE]  # of the simulator
    facts = [("device", device_name(results))]
    facts += [
        (title, str(results.device[name]))
        for name, title in DEVICE_FACTS.items()
        if results.device.get(name)
    ]
    limits = peaks(results)
    if limits:
        facts.append(("peak rates", ", ".join(f"{name} {rate(v)}" for name, v in limits.items())))
    if results.device.get("bandwidth"):
        facts.append(("memory", f"{float(results.device['bandwidth']) / 1e12:.3g} TB/s"))
    for name in ("driver", "compiler", "pymm", "commit"):
        seen = sorted({row.text(name) for row in rows} - {""})
        if seen:
            facts.append((name, ", ".join(seen)))
    moments = sorted(row.text("time") for row in rows if row.text("time"))
    if moments:
        facts.append(("measured", f"{moments[0]} to {moments[-1]}"))
    libraries = {t.library for t in timings(results)} - {OWN}
    facts.append(("compared with", ", ".join(sorted(map(display_name, libraries))) or "nothing"))
    facts.append(("read from", ", ".join(results.files) or "nothing"))
    return facts


def bench_commands(results: Results) -> list[str]:
    """The commands that measure each file of `python -m pymm.bench --shapes` again."""
    files: dict[str, list[Row]] = {}
    for row in results.of("bench"):
        files.setdefault(row.file, []).append(row)
    return [
        f"python -m pymm.bench {_products(rows, results)} --csv " + _csv(results, file)
        for file, rows in files.items()
    ] or [
        f"python -m pymm.bench --shapes ladder --kernels all{_device(results)} "
        f"--csv {_csv(results, 'ladder.csv')}"
    ]


def class_commands(results: Results) -> list[str]:
    """The commands that measure every class again."""
    csv = f"{_device(results)} --csv {_csv(results, 'classes.csv')}"
    symmetric = "syrk-large,syrk-small"
    return [f"python -m pymm.bench --classes {name}{csv}" for name in ("all", symmetric)]


def suite_command(results: Results, name: str) -> str:
    """The command that measures an experiment into the files of this report."""
    types = " --dtypes f64,f32" if name == "o3" else ""
    csv = f"{_device(results)} --csv {_csv(results, 'suites.csv')}"
    return f"python -m pymm.bench --suite {name}{types}{csv}"


def _device(results: Results) -> str:
    cores = results.device.get("cores")
    return f" --device cpu:{cores}" if cores else ""


def tune_commands(results: Results) -> list[str]:
    """The commands that search again on the same products."""
    operations: dict[str, list[Row]] = {}
    for row in results.of("trials"):
        operations.setdefault(row.problem.op, []).append(row)
    found = []
    for op, rows in operations.items():
        products = _products(rows, results).replace(" --device ", " --devices ")
        found.append(f"python -m pymm.tune {'' if op == 'gemm' else f'--op {op} '}{products}")
    device = _device(results).replace(" --device ", " --devices ")
    csv = "" if results.machine else f" --csv {_csv(results, 'tuning.csv')}"
    return found or [f"python -m pymm.tune{device}{csv}"]


def _csv(results: Results, file: str) -> str:
    """A file of the results, quoted for a shell."""
    return shlex.quote(f"{results.place}/{file}")


def _products(rows: list[Row], results: Results) -> str:
    """The options that name the products of rows."""
    shapes = dict.fromkeys((row.problem.m, row.problem.n, row.problem.k) for row in rows)
    names = (str(n) if m == n == k else f"{m}x{n}x{k}" for m, n, k in shapes)
    dtypes = dict.fromkeys(row.problem.dtype for row in rows)
    layouts = dict.fromkeys(row.problem.layout for row in rows)
    transposes = "" if list(layouts) == ["NN"] else f" --transposes {','.join(layouts)}"
    named = f"--shapes {','.join(names)} --dtypes {','.join(dtypes)}{transposes}"
    return f"{named}{_device(results)}"


def page_commands(results: Results) -> list[str]:
    """The commands that make this report again, and that verify it on a machine."""
    return [
        results.remake,
        f"python -m pymm verify {shlex.quote(str(results.page))}",
    ]
