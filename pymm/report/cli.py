"""The command `python -m pymm.report`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pymm.backends import open_device
from pymm.console import program
from pymm.core.errors import NoDevice
from pymm.core.files import replace_text
from pymm.core.inputs import BadInput
from pymm.core.paths import cache_directory, state_directory
from pymm.report.chapters import report as report_of
from pymm.report.compare import comparison
from pymm.report.content import Report
from pymm.report.export import read_report
from pymm.report.facts import describe
from pymm.report.html import html
from pymm.report.load import Results, read_device, read_machine
from pymm.report.markdown import markdown
from pymm.report.svg import Figure, standalone
from pymm.selection import store
from pymm.selection.choose import tuned_directory
from pymm.selection.records import Environment

if TYPE_CHECKING:
    from pymm.tune.tuner import Tuner

PAGE, TEXT, DATA, PICTURE = "report.html", "report.md", "report.json", "glance.svg"

#: Where a checkout has the measurements and the pages of all devices.
RESULTS, REPORTS = Path("benchmarks/results"), Path("reports")

EXAMPLES = """\
examples:
  python -m pymm.report                     this machine: what is tuned and measured on its device
  python -m pymm.report --device cpu        the same of its CPU
  python -m pymm.report --all               every device of benchmarks/results, into reports/
  python -m pymm.report nvidia-h200         one device of benchmarks/results
  python -m pymm.report FOLDER --out pages  a folder of CSV files, named as its device
  python -m pymm.report --compare before.json reports/nvidia-h200
                                            what is faster, slower or unclear
  python -m pymm.report --all --check       are Markdown and JSON up to date?

exit status: 0 written (--check: up to date), 1 nothing to show (--check: out of date), 2 bad
options, 3 no such device
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.device is not None and (options.all or options.devices or options.compare):
        parser.error("--device is of this machine: leave it out with --all, DEVICE and --compare")
    if options.all and options.devices:
        parser.error("--all is every device: leave it out, or the names")
    if options.compare:
        return _compare(parser, options)
    try:
        if options.describe is not None:
            return _describe(options)
        if not (options.all or options.devices):
            return _this_machine(options)
    except (NoDevice, ValueError) as failure:
        print(f"pymm report: {failure}", file=sys.stderr)
        return 3
    try:
        records = options.records or Path(str(store.shipped()))
        found = [read_device(folder, records) for folder in _folders(options)]
    except (FileNotFoundError, BadInput) as failure:
        parser.error(str(failure))
    status = 0
    for results in found:
        status |= _made(results, (options.out or REPORTS) / results.slug, options.check)
    return status


def _this_machine(options: argparse.Namespace) -> int:
    """Make the report of a device of this machine. `NoDevice` if it has no such device."""
    backend = open_device(options.device or None, cache_directory())
    device = backend.device
    folder = state_directory() / device.slug
    paths = sorted(folder.glob("*.csv"))
    if options.results:
        paths += sorted((options.results / device.slug).glob("*.csv"))
    target = options.out / device.slug if options.out else folder
    environment = Environment.of(device, backend.toolchain)
    records = options.records or tuned_directory()
    found = read_machine(device, environment, paths, records, target)
    return _made(found, target, options.check)


def page_after_tuning(tuner: Tuner) -> None:
    """Make the page of a device that was tuned, and say where it is. A page that cannot be written
    changes nothing for the tuner.
    """
    paths = [tuner.trials, *sorted(tuner.folder.glob("*.csv"))]
    try:
        found = read_machine(tuner.device, tuner.environment, paths, tuner.output, tuner.folder)
        write(report_of(found), tuner.folder)
    except (BadInput, OSError) as failure:
        tuner.say(f"No page was made: {failure}")
    else:
        tuner.say(f"Page: {tuner.folder / PAGE}")


def _made(found: Results, target: Path, check_only: bool) -> int:
    """Write a report, or check the one that is there. Returns the exit status."""
    made = report_of(found, figures=not check_only)
    if not made.chapters:
        tune = "  python -m pymm.tune tunes this device"
        print(f"{found.slug}: nothing to show", *found.notices, sep="\n  ", file=sys.stderr)
        if found.machine:
            print(tune, file=sys.stderr)
        return 1
    if check_only:
        return check(made, target)
    write(made, target)
    print(f"{target / PAGE}: {len(made.chapters)} chapters, {len(found.files)} files read")
    for notice in filter(None, (*made.notices, made.no_figures)):
        print(f"  {notice}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("report"),
        description="Make a report of a device's measurements: an HTML page, Markdown and JSON. "
        "Without arguments\nit is of this machine: your tuned configurations, and all CSV files in "
        "the tuner's state\nfolder. Figures need Matplotlib.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "devices",
        nargs="*",
        metavar="DEVICE",
        help="folders of CSV files, or names of folders in --results (default: this machine)",
    )
    add("--device", metavar="D", help="of this machine: 0, cpu, cpu:1 (default: as for pymm.tune)")
    add("--all", action="store_true", help="every device of --results")
    add(
        "--results",
        type=Path,
        metavar="DIR",
        help="folder with a folder of CSV files per device (default: benchmarks/results; of this "
        "machine none is read)",
    )
    add(
        "--records",
        type=Path,
        metavar="DIR",
        help="folder of the tuned configurations (default: those shipped with pymm; of this "
        "machine the user's and these)",
    )
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="output folder, with a folder per device (default: reports; of this machine the "
        "user's state, where the tuner's trials are)",
    )
    _add_other_tasks(parser)
    return parser


def _add_other_tasks(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="compare two reports (report.json, its folder, or a folder of results)",
    )
    add(
        "--describe",
        nargs="?",
        const="",
        metavar="DEVICE",
        help="write device.json, the peak rates and sizes of this machine's device (0, cpu, cpu:1; "
        "default: the first GPU, else the CPU), into its folder of --results",
    )
    add(
        "--check",
        action="store_true",
        help="write nothing; say whether Markdown and JSON are up to date",
    )


def _describe(options: argparse.Namespace) -> int:
    backend = open_device(options.describe or None, cache_directory())
    print(describe(backend.device, options.results or RESULTS))
    return 0


def _compare(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        first, second = (read_report(_place(name, options)) for name in options.compare)
    except ValueError as failure:
        parser.error(str(failure))
    made = comparison(first, second)
    if not made.chapters:
        print(f"{first.name} and {second.name} have no measurement in common", file=sys.stderr)
        return 1
    target = (options.out or REPORTS) / f"{first.slug}-and-{second.slug}"
    write(made, target)
    for tile in made.chapters[0].tiles:
        print(f"{tile.label}: {tile.value} ({tile.note})")
    print(target / PAGE)
    return 0


def _place(name: str, options: argparse.Namespace) -> Path:
    """A path, or the name of a device that has a report or a folder of CSV files."""
    out, results = options.out or REPORTS, options.results or RESULTS
    places = [Path(name), out / name, results / name]
    return next((place for place in places if place.exists()), Path(name))


def _folders(options: argparse.Namespace) -> list[Path]:
    """The folders to make reports of. `FileNotFoundError` for one that does not exist."""
    results = options.results or RESULTS
    if options.all:
        if not results.is_dir():
            raise FileNotFoundError(f"{results} is not a folder: give one with --results")
        return sorted(path for path in results.iterdir() if path.is_dir())
    found = []
    for name in options.devices:
        places = [results / name, Path(name)]
        folder = next((path for path in places if path.is_dir()), None)
        if folder is None:
            raise FileNotFoundError(f"{name} is not a folder, nor is it one in {results}")
        found.append(folder.resolve())
    return found


def write(report: Report, folder: Path) -> None:
    """Write the files of a report, for every user to read; a picture of an earlier one that has
    none now is removed. The same rows give the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    picture = picture_of(report)
    made = texts(report, bool(picture)) | {PAGE: html(report)}
    if picture:
        made[PICTURE] = standalone(picture[0])
    for name, text in made.items():
        replace_text(folder / name, text)
        (folder / name).chmod(0o644)
    if not picture:
        (folder / PICTURE).unlink(missing_ok=True)


def picture_of(report: Report) -> list[Figure]:
    """The figure that is also written as a file of its own, if there is one."""
    return [f for chapter in report.chapters if chapter.name == "glance" for f in chapter.figures][
        :1
    ]


def texts(report: Report, pictured: bool) -> dict[str, str]:
    """The files that do not depend on Matplotlib's version. The Markdown links the picture if there
    is one.
    """
    picture = PICTURE if pictured else ""
    data = json.dumps(report.data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return {TEXT: markdown(report, PAGE, picture), DATA: data}


def check(report: Report, folder: Path) -> int:
    """0 if the Markdown and the JSON in `folder` are those of this report, else 1."""
    status = 0
    for name, text in texts(report, (folder / PICTURE).exists()).items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is out of date: run python -m pymm.report --all")
            status = 1
    return status
