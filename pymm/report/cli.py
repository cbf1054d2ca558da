"""The command `python -m pymm.report`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pymm.core.inputs import BadInput
from pymm.report.chapters import report as report_of
from pymm.report.compare import comparison
from pymm.report.content import Report
from pymm.report.export import read_report
from pymm.report.html import html
from pymm.report.load import describe, read_device
from pymm.report.markdown import markdown
from pymm.report.svg import Figure, standalone

PAGE, TEXT, DATA, PICTURE = "report.html", "report.md", "report.json", "glance.svg"

EXAMPLES = """\
examples:
  python -m pymm.report                     every device of benchmarks/results
  python -m pymm.report nvidia-h200         one device
  python -m pymm.report FOLDER --out pages  a folder of CSV files, named as its device
  python -m pymm.report --compare before.json reports/nvidia-h200
                                            what is faster or slower beyond the noise
  python -m pymm.report --check             are Markdown and JSON up to date?

exit status: 0 written (--check: up to date), 1 nothing to show (--check: out of date), 2 bad
options, 3 no such device
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.compare:
        return _compare(parser, options)
    if options.describe is not None:
        return _describe(options)
    try:
        folders = _folders(options)
    except FileNotFoundError as missing:
        parser.error(str(missing))
    status = 0
    for folder in folders:
        try:
            found = read_device(folder, options.records)
        except BadInput as failure:
            parser.error(str(failure))
        made = report_of(found, figures=not options.check)
        target = options.out / found.slug
        if not made.chapters:
            print(f"{folder.name}: nothing to show", *found.notices, sep="\n  ", file=sys.stderr)
            status = 1
        elif options.check:
            status |= check(made, target)
        else:
            write(made, target)
            print(f"{target / PAGE}: {len(made.chapters)} chapters, {len(found.files)} files read")
            for notice in filter(None, (*made.notices, made.no_figures)):
                print(f"  {notice}")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pymm.report",
        description="Make a report of a device's measurements: an HTML page, Markdown and JSON.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "devices",
        nargs="*",
        metavar="DEVICE",
        help="folders of CSV files, or names of folders in --results",
    )
    add(
        "--results",
        type=Path,
        default=Path("benchmarks/results"),
        metavar="DIR",
        help="folder with a folder of CSV files per device (default: benchmarks/results)",
    )
    add(
        "--records",
        type=Path,
        default=Path("tuning_configs"),
        metavar="DIR",
        help="folder of the tuned configurations (default: tuning_configs)",
    )
    add(
        "--out",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help="output folder, with a folder per device (default: reports)",
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
    from pymm.backends import open_device
    from pymm.core.errors import NoDevice
    from pymm.measure.precompile import cache_directory

    try:
        backend = open_device(options.describe or None, cache_directory())
    except (NoDevice, ValueError) as failure:
        print(f"pymm report: {failure}", file=sys.stderr)
        return 3
    print(describe(backend.device, options.results))
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
    target = options.out / f"{first.slug}-and-{second.slug}"
    write(made, target)
    for tile in made.chapters[0].tiles:
        print(f"{tile.label}: {tile.value} ({tile.note})")
    print(target / PAGE)
    return 0


def _place(name: str, options: argparse.Namespace) -> Path:
    """A path, or the name of a device that has a report or a folder of CSV files."""
    places = [Path(name), options.out / name, options.results / name]
    return next((place for place in places if place.exists()), Path(name))


def _folders(options: argparse.Namespace) -> list[Path]:
    """The folders to make reports of. `FileNotFoundError` for one that does not exist."""
    if not options.devices:
        if not options.results.is_dir():
            raise FileNotFoundError(f"{options.results} is not a folder: give one with --results")
        return sorted(path for path in options.results.iterdir() if path.is_dir())
    found = []
    for name in options.devices:
        places = [options.results / name, Path(name)]
        folder = next((path for path in places if path.is_dir()), None)
        if folder is None:
            raise FileNotFoundError(f"{name} is not a folder, nor is it one in {options.results}")
        found.append(folder.resolve())
    return found


def write(report: Report, folder: Path) -> None:
    """Write the files of a report. The same rows give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts(report, bool(picture_of(report))).items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / PAGE).write_text(html(report), encoding="utf-8")
    for figure in picture_of(report):
        (folder / PICTURE).write_text(standalone(figure), encoding="utf-8")


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
            print(f"{path} is out of date: run python -m pymm.report")
            status = 1
    return status
