"""What a device was measured with, and what of it was not measured."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pymm.report.content import rate
from pymm.report.load import ANYWHERE, Findings, Row
from pymm.report.stats import OWN, device_name, peaks, timed, written


def environment(findings: Findings) -> list[tuple[str, str]]:
    """What it was measured with, each value that occurs."""
    rows = [row for kind in findings.rows.values() for row in kind]
    rows = [row for row in rows if row.text("suite") not in ANYWHERE]  # of the simulator
    facts = [("device", device_name(findings))]
    for name in ("kind", "capability", "sms", "cores", "vector_bytes"):
        if findings.device.get(name):
            facts.append((name.replace("_", " "), str(findings.device[name])))
    limit = peaks(findings)
    if limit:
        facts.append(("limits", ", ".join(f"{name} {rate(v)}" for name, v in limit.items())))
    if findings.device.get("bandwidth"):
        facts.append(("memory", f"{float(findings.device['bandwidth']) / 1e12:.3g} TB/s"))
    for name in ("driver", "compiler", "pymm", "commit"):
        seen = sorted({row.text(name) for row in rows} - {""})
        if seen:
            facts.append((name, ", ".join(seen)))
    moments = sorted(row.text("time") for row in rows if row.text("time"))
    if moments:
        facts.append(("measured", f"{moments[0]} to {moments[-1]}"))
    libraries = {t.who for t in timed(findings)} - {OWN}
    facts.append(("beside", ", ".join(sorted(map(written, libraries))) or "nothing"))
    facts.append(("read from", ", ".join(findings.files) or "nothing"))
    return facts


def bench_commands(findings: Findings) -> list[str]:
    """The lines that measure again what each file of `python -m pymm.bench --shapes` holds."""
    files: dict[str, list[Row]] = {}
    for row in findings.of("bench"):
        files.setdefault(row.file, []).append(row)
    return [
        f"python -m pymm.bench {_products(rows, findings)} --csv "
        + shlex.quote(f"{findings.place}/{file}")
        for file, rows in files.items()
    ] or [
        f"python -m pymm.bench --shapes ladder --kernels all{_device(findings)} "
        f"--csv {findings.place}/ladder.csv"
    ]


def class_commands(findings: Findings) -> list[str]:
    """The lines that measure every class again."""
    csv = f"{_device(findings)} --csv {findings.place}/classes.csv"
    symmetric = "syrk-large,syrk-small"
    return [f"python -m pymm.bench --classes {name}{csv}" for name in ("all", symmetric)]


def suite_command(findings: Findings, name: str) -> str:
    """The line that measures an experiment into the files that this page is made of."""
    types = " --dtypes f64,f32" if name == "o3" else ""
    csv = f"{_device(findings)} --csv {findings.place}/suites.csv"
    return f"python -m pymm.bench --suite {name}{types}{csv}"


def lacking(commands: Sequence[str], what: str = "Not measured here yet") -> list[str]:
    """The line that says how to measure what a chapter has nothing of."""
    return [f"{what}. The command is `{commands[0]}`."]


def _device(findings: Findings) -> str:
    cores = findings.device.get("cores")
    return f" --device cpu:{cores}" if cores else ""


def tune_commands(findings: Findings) -> list[str]:
    """The lines that search again on the same products."""
    operations: dict[str, list[Row]] = {}
    for row in findings.of("trials"):
        operations.setdefault(row.problem.op, []).append(row)
    found = []
    for op, rows in operations.items():
        products = _products(rows, findings).replace(" --device ", " --devices ")
        found.append(f"python -m pymm.tune {'' if op == 'gemm' else f'--op {op} '}{products}")
    device = _device(findings).replace(" --device ", " --devices ")
    return found or [f"python -m pymm.tune{device} --csv {findings.place}/tuning.csv"]


def _products(rows: list[Row], findings: Findings) -> str:
    """Options that name the products of rows."""
    shapes = dict.fromkeys((row.problem.m, row.problem.n, row.problem.k) for row in rows)
    words = (str(n) if m == n == k else f"{m}x{n}x{k}" for m, n, k in shapes)
    dtypes = dict.fromkeys(row.problem.dtype for row in rows)
    layouts = dict.fromkeys(row.problem.layout for row in rows)
    transposes = "" if list(layouts) == ["NN"] else f" --transposes {','.join(layouts)}"
    named = f"--shapes {','.join(words)} --dtypes {','.join(dtypes)}{transposes}"
    return f"{named}{_device(findings)}"


def page_commands(findings: Findings) -> list[str]:
    """The lines that make the page anew, and that hold it against a machine."""
    return [
        f"python -m pymm.report {findings.slug}",
        f"python -m pymm verify reports/{findings.slug}/report.json",
    ]
