"""Products of one kernel that is watched for races: ``raced_products.py CONFIG TYPE LAYOUT [OLD
NEW]``. OLD in the kernel's file is replaced by NEW first.
"""

import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

os.environ["PYMM_SIMULATOR"] = os.environ["PYMM_SIMULATOR_RACES"] = "1"

import fed_products  # noqa: E402
import guarded_products  # noqa: E402

import pymm.simulator  # noqa: E402
from pymm.backends import open_device  # noqa: E402
from pymm.core.problem import Problem  # noqa: E402
from pymm.kernels import parse_slug  # noqa: E402
from pymm.kernels.source import render  # noqa: E402

SOURCES = Path(__file__).resolve().parents[2] / "cuda_src"


def changed(slug: str, old: str, new: str, folder: str):
    """The configuration, of a kernel whose file, or what it includes, has NEW where it had OLD."""
    config = parse_slug(slug)
    text = (SOURCES / config.kernel.file).read_text()
    for include, name in re.findall(r'(#include "(common/\w+\.cuh)"\n)', text):
        if old in (included := (SOURCES / name).read_text()):
            text = text.replace(include, included)
    assert text.count(old) == 1, f"{config.kernel.file} has {old!r} {text.count(old)} times"
    own = Path(folder, config.kernel.file)
    own.write_text(text.replace(old, new))
    config.__dict__["kernel"] = replace(config.kernel, file=str(own))
    return config


def problems(config, dtype: str, layout: str) -> list[Problem]:
    """Two tiles, one of them partial, deep enough to use every stage more than once in each part
    of k; and the corner of a tile. In clusters also more tiles than there are clusters, so that
    blocks go from one to the next.
    """
    fields = config.as_dict()
    mb, nb, kb = fields["MB"], fields["NB"], fields.get("KB", 8)
    deep = (2 * fields.get("STAGES", 1) + 1) * kb * fields.get("SPLIT", 1)
    trans = [letter == "T" for letter in layout]
    shapes = ((mb + 3, nb - 1, deep + 5), (5, 7, 3 * kb - 1))
    found = [Problem(*shape, dtype, *trans) for shape in shapes]
    if fields.get("CLUSTER", 1) > 1:
        depth = kb * fields.get("SPLIT", 1) + 8
        found.append(Problem(5, 7, depth, dtype, *trans, batch=5))
    return [p for p in found if not config.kernel.violations(config, p, fed_products.HOPPER)]


def main(slug: str, dtype: str, layout: str, *change: str) -> None:
    backend = open_device("cuda")
    assert pymm.simulator.watches_races()
    with tempfile.TemporaryDirectory() as folder:
        config = changed(slug, *change, folder) if change else parse_slug(slug)
        made = problems(config, dtype, layout)
        assert made, f"rules forbid {slug}"
        for seed, problem in enumerate(made):
            if config.kernel.tma:
                fed_products.check(backend, config, problem, seed)
            else:
                loaded = backend.load(render(config, problem, problem.numpy_dtype.itemsize))
                operands = guarded_products.make(problem, seed)
                runner = guarded_products.Runner(backend)
                guarded_products.check(runner, loaded, problem, operands, 1.3, seed % 2 - 0.6)
    assert pymm.simulator.bank_rounds() or slug.startswith(("naive", "coalesced"))
    print("all right")


if __name__ == "__main__":
    main(*sys.argv[1:])
