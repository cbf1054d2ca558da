"""What a device was measured with, and what of it was not measured."""

from __future__ import annotations

from pymm.report.chapters_studies import ORIGINS
from pymm.report.content import rate
from pymm.report.facts import OWN, device_name, opponent_name, peaks, timed, written
from pymm.report.reading import Findings
from pymm.report.studies import studies


def measurable(findings: Findings) -> dict[str, bool]:
    """What a report can have, and whether this one does, by its rows."""
    found = studies(findings)
    origin = {title: any(name in found for name in names) for _, title, _, names in ORIGINS}
    return {
        f"products beside {opponent_name(findings)}": bool(findings.of("classes")),
        "the ladder": bool(findings.of("bench")),
        "searches": bool(findings.of("trials")),
        **origin,
        "shapes never tuned": bool(findings.of("unseen")),
    }


def environment(findings: Findings) -> list[tuple[str, str]]:
    """What it was measured with, each value that occurs."""
    rows = [row for kind in findings.rows.values() for row in kind]
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
