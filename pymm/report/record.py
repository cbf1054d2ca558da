"""A report as data: what `pymm report --compare` and `pymm verify` read."""

from __future__ import annotations

from collections.abc import Iterator

from pymm.report.facts import (
    OWN,
    Timed,
    bench_duels,
    device_name,
    duels,
    extremes,
    mean,
    peaks,
    timed,
)
from pymm.report.grids import kind_of
from pymm.report.reading import Findings
from pymm.report.searches import searches

SCHEMA = 1


def data_of(findings: Findings) -> dict[str, object]:
    """The JSON of a report: the device, what its rows come to, every kernel's time, every library's
    time. Times in seconds, rates in GFLOP/s.
    """
    everything = timed(findings)
    return {
        "schema": SCHEMA,
        "device": {"slug": findings.slug, "name": device_name(findings)}
        | {k: v for k, v in findings.device.items() if k not in ("slug", "name")},
        "limits_gflops": {name: rounded(value) for name, value in peaks(findings).items()},
        "summary": summary(findings),
        "measurements": [_measurement(t) for t in everything],
        "searches": [
            {
                "problem": s.problem.slug,
                "kernel": s.kernel,
                "trials": len(s.tried),
                "outcomes": dict(sorted(s.outcomes.items())),
                "gain": number(s.gain),
                "config": s.best.text("config") if s.best else "",
                "file": s.file,
            }
            for s in searches(findings)
        ],
        "files": list(findings.files),
    }


def summary(findings: Findings) -> dict[str, object]:
    """Means and highest rates by type."""
    held = duels(findings) or bench_duels(findings)
    gains = [search.gain for search in searches(findings)]
    types = {}
    for e in extremes(findings):
        ratios = [d.ratio for d in held if kind_of(d.problem) == e.dtype]
        types[e.dtype] = {
            "gflops": rounded(e.own.gflops),
            "problem": e.own.problem.slug,
            "of_limit": rounded(e.own.gflops / e.peak),
            "ratio": number(mean(ratios)),
            "products": sum(ratio > 0 for ratio in ratios),
        }
    return {"types": types, "tuning_gain": number(mean(gains))}


def _measurement(t: Timed) -> dict[str, object]:
    row = t.row
    fields: dict[str, object] = {
        "problem": t.problem.slug,
        "who": t.who,
        "kernel": t.rung,
        "variant": t.variant,
        "config": row.text("config") if t.who == OWN else "",
        "seconds": rounded(t.seconds),
        "spread": number(t.spread),
        "rounds": number(t.rounds),
        "file": t.run,
    }
    if t.who == OWN:
        fields |= {
            "ratio": number(row.number("ratio")),
            "reason": row.text("reason"),
            "source": row.text("source"),
        }
    return dict(_known(fields))


def _known(fields: dict[str, object]) -> Iterator[tuple[str, object]]:
    return ((key, value) for key, value in fields.items() if value not in ("", None))


def number(value: float) -> float | None:
    """A number as JSON has it: none for NaN."""
    return None if value != value else rounded(value)


def rounded(value: float) -> float:
    """Six digits: no time is known better."""
    return float(f"{value:.6g}")
