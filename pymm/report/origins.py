"""The chapters of the experiments that pymm began with: where each comes from, what it shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.report import tables_experiments
from pymm.report.content import Chapter, Table
from pymm.report.load import Results
from pymm.report.prose import observation, stale_rows
from pymm.report.provenance import suite_command
from pymm.report.stats import Experiment, experiments


@dataclass(frozen=True)
class Origin:
    """One chapter: a work that pymm began with, and its experiments measured with pymm."""

    name: str
    title: str
    intro: str
    experiments: tuple[str, ...]


#: In the order of the page.
ORIGINS = (
    Origin(
        "o1",
        "What do tiles in shared memory gain?",
        "After a course report of 2017 on tiled multiplication with shared memory, which compared "
        "one thread per element of C that reads its operands from global memory with tiles in "
        "shared memory, in phases along k. Here both kernels run with pymm.",
        ("o1",),
    ),
    Origin(
        "o2",
        "What do transfers, sizes, partial tiles and block sizes cost?",
        "After the element-wise and blocked kernels of a course on graphics cards and "
        "accelerators, measured there on a GTX 1080 Ti: the cost of transfers from pageable and "
        "from page-locked memory, the rate against the size, the cost of partial tiles at every "
        "size from 1000 to 1100, the best block size, what a profiler says of each kernel, and "
        "the operations and memory accesses of one thread.",
        (
            "o2-transfers",
            "o2-split",
            "o2-sizes",
            "o2-remainders",
            "o2-blocks",
            "o2-guards",
            "o2-kernels",
            "o2-counts",
        ),
    ),
    Origin(
        "o3",
        "How fast is A^T A?",
        "After a CUDA project that computed C = A^T A in double precision on a Tesla C2075, "
        "writing one triangle and its mirror image, and compared it with cuBLAS and with a naive "
        "kernel. Here `pymm.syrk` is compared with the library's gemm and syrk.",
        ("o3", "o3-pads"),
    ),
    Origin(
        "o4",
        "What does each of the first five kernels gain over a sequential product?",
        "After a parallel computing project of 2024, which took C + A B from a sequential loop "
        "over five CUDA kernels, whose parameters MB, NB, KB, TA and TB pymm still has, to MPI. "
        "Here the ladder's first five kernels are compared with a sequential product on the host.",
        ("o4-square", "o4-rectangular"),
    ),
)


def origins(results: Results) -> list[Chapter]:
    """A chapter for each of `ORIGINS`."""
    found = experiments(results)
    return [_origin(results, origin, found) for origin in ORIGINS]


def filled(tables: Iterable[Table]) -> list[Table]:
    """The tables that have rows."""
    return [table for table in tables if table.rows]


def _origin(results: Results, origin: Origin, found: dict[str, Experiment]) -> Chapter:
    at = [found[name] for name in origin.experiments if name in found]
    sentences = [(f"{experiment.name}:", observation(experiment)) for experiment in at]
    return Chapter(
        origin.name,
        origin.title,
        origin.intro,
        tables=filled(table for experiment in at for table in _tables(experiment)),
        commands=[suite_command(results, experiment.name) for experiment in at],
        observations=[(name, sentence) for name, sentence in sentences if sentence],
        remarks=[said for experiment in at if (said := stale_rows(experiment))],
        not_measured=[
            (f"{name}, {EXPERIMENTS[name].title}", suite_command(results, name))
            for name in origin.experiments
            if name not in found and name not in results.absent
        ],
    )


def _tables(experiment: Experiment) -> list[Table]:
    if experiment.name == "o2-kernels":
        found = [tables_experiments.kernel_facts(experiment)]
    elif experiment.name == "o2-guards":
        found = [tables_experiments.checks(experiment)]
    elif experiment.name == "o2-counts":
        found = [tables_experiments.counts(experiment)]
    elif experiment.name in ("o2-transfers", "o2-split"):
        found = [tables_experiments.transfer_times(experiment)]
    else:
        rates = tables_experiments.rates(experiment)
        found = [rates, *tables_experiments.against_sequential(experiment)]
        found.append(tables_experiments.transfers(experiment))
    return [*found, tables_experiments.left_out(experiment)]
