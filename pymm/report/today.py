"""Whether a measurement is still today's: whether pymm would run the same kernel source with the
same configuration, driver and compiler now.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, parse_slug
from pymm.kernels.source import kernel_digest
from pymm.selection.plain import computed
from pymm.selection.records import Environment, Record, source_changed, stale_because
from pymm.selection.select import select

if TYPE_CHECKING:
    from pymm.report.load import Row

#: Experiments whose kernels are CUDA kernels on every device: they are counted in the simulator.
SIMULATED = ("o2-counts",)


@dataclass
class Today:
    """What pymm does today on a device. Of a device that is None only kernel sources are known;
    without an `environment` the tools of a row are taken for today's. `directory` holds the user's
    tuned configurations; `records` are all that are read for the device.
    """

    device: Device | None = None
    directory: Path | None = None
    records: tuple[Record, ...] = ()
    environment: Environment | None = None
    _chosen: dict[object, str] = field(default_factory=dict, init=False)

    def stale_because(self, row: Row) -> str:
        """Why a row is stale, in words; "" if it is today's, or if nobody can say."""
        if self.environment is not None:
            for tool in ("driver", "compiler"):
                then, now = row.text(tool), getattr(self.environment, tool)
                if then and then != now:
                    return f"measured with {tool} {then}, now {now or 'none'}"
        if not row.text("config") or row.text("role") == "baseline":
            return ""
        return self._source_changed(row) or self._choice_changed(row)

    def _source_changed(self, row: Row) -> str:
        if not row.text("source"):
            return ""
        on_cpu = self._on_cpu and row.text("suite") not in SIMULATED
        try:
            config = parse_slug(row.text("config"), "cpu" if on_cpu else "cuda", forced=True)
            digest = kernel_digest(config.backend, config.kernel.file)
        except (ValueError, OSError):
            return "this pymm has no such configuration"
        return "" if digest == row.text("source") else "the kernel's source has changed"

    @property
    def _on_cpu(self) -> bool:
        device = self.device
        if device is None:
            return any(record.config.backend == "cpu" for record in self.records)
        return device.kernel_backend == "cpu"

    def _choice_changed(self, row: Row) -> str:
        """Of what `matmul` chose."""
        chosen = row.kind == "classes" or row.text("variant") == "chosen"
        if self.device is None or row.problem is None or not chosen:
            return ""
        tools = (row.text("driver"), row.text("compiler"))
        tools = self.environment or Environment(*tools)
        now = self.choice(row.problem, tools, in_its_type=row.kind != "classes")
        if now in ("", row.text("config")):
            return ""
        return f"pymm chooses {now} today"

    def choice(self, problem: Problem, environment: Environment, in_its_type: bool = False) -> str:
        """What `matmul` chooses today, as a slug, or what it would if every product were computed
        in its own type; "" if no kernel computes it here.
        """
        key = (problem, environment.tools, in_its_type)
        if key not in self._chosen:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a damaged file is reported where it is read
                try:
                    given = self.device, self.directory, environment
                    if in_its_type:
                        found = select(problem, *given)
                    else:
                        _, found, _ = computed(problem, self.device, lambda p: select(p, *given))
                    self._chosen[key] = found.config.slug
                except (ValueError, NotImplementedError):
                    self._chosen[key] = ""
        return self._chosen[key]

    def search_stale_because(self, kernel: str, best: Row, default: Row | None) -> str:
        """Why the result of a search is not today's: its rows, a default that the kernel does not
        have any more, or a winner that is not stored, as it was doubtful or was replaced.
        """
        for row in filter(None, (best, default)):
            if row.stale:
                return row.stale
        if default is not None and (now := self._default(kernel, best.problem)):
            if now != default.text("config"):
                return f"the default is {now} today"
        if not self.records:
            return ""
        stored = (r for r in self.records if r.config.slug == best.text("config"))
        if any(r.problem == best.problem and not source_changed(r) for r in stored):
            return ""
        return "its winner is not stored"

    def record_stale_because(self, record: Record) -> str:
        """Why a stored configuration is not today's; "" if it is, or if nobody can say."""
        if self.environment is None or self.device is None:
            return source_changed(record)
        return stale_because(record, self.device, self.environment)

    def _default(self, kernel: str, problem: Problem) -> str:
        """The default of a kernel as a slug; "" if nobody can say."""
        if self.device is None:
            return ""
        try:
            found = find_kernel(kernel, self.device.kernel_backend)
            config = found.default_for(problem, self.device)
        except (ValueError, NotImplementedError):
            return ""
        return config.slug if config is not None else ""
