"""The command line: what it refuses before anything is touched, and looking without measuring."""

import io

import pytest
from recorded import RecordedWorker
from recorded_run import GPU, KERNEL, Run, smooth
from rich.console import Console

from pymm.core.problem import Problem
from pymm.measure.worker import WorkerFailed
from pymm.tune.options import parse
from pymm.tune.tuner import BAD_OPTIONS, NO_DEVICE, TUNED, Tuner


def test_dry_run_and_list_measure_nothing(tmp_path):
    run = Run(tmp_path, "--dry-run")
    valid, rejected = KERNEL.configs(Problem(256, 256, 256), GPU)
    assert run.status == TUNED and not run.asked and not list(tmp_path.iterdir())
    total = len(valid) + rejected.total()
    assert f"{len(valid)} of {total} configurations are valid" in run.output
    for reason in rejected:
        assert reason in run.output
    listed = Run(tmp_path, "--list").output.splitlines()
    assert sum(line.startswith("f32-NN-256x256x256 register_tile-") for line in listed) == len(
        valid
    )


@pytest.mark.parametrize(
    "arguments, says",
    [
        ("--kernels 99", "no kernel '99'"),
        ("--shapes 100000", "smaller shape"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(tmp_path, arguments, says):
    run = Run(tmp_path, arguments)
    assert run.status == BAD_OPTIONS and says in run.output
    assert not run.asked and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, says",
    [
        ("--shapes 12xx3", "12xx3"),
        ("--dtypes f8", "f8"),
        ("--transposes TNT", "TNT"),
        ("--trials 0", "above 0"),
        ("--budget -5", "above 0"),
        ("--sampler best", "best"),
        ("--shapes no-such-file.csv", "no-such-file.csv"),
        ("--stale --dtypes f16", "--stale says itself what is tuned"),
        ("--devices 0,cuda:0", "device 0 is named twice"),
        ("--devices all,1", "all means every GPU"),
    ],
)
def test_bad_options(arguments, says, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split())
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_quick_is_a_first_look():
    quick = parse(["--quick"])
    assert quick.budget <= 90 and quick.dtypes == ("f32",) and len(quick.shapes) == 3
    other = parse("--quick --shapes 64 --dtypes f64 --budget 5".split())
    assert (other.shapes, other.dtypes, other.budget) == (((64, 64, 64),), ("f64",), 5.0)
    assert parse([]).shapes is None and parse([]).dtypes == ("f32", "f64")


def test_damaged_store_is_known_before_the_work(tmp_path):
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / f"{GPU.slug}.yaml"
    path.write_text("schema: [")
    run = Run(tmp_path, "--trials 5")
    assert run.status == BAD_OPTIONS and path.name in run.output
    assert not run.asked and path.read_text() == "schema: ["


def test_no_device(tmp_path):
    class Absent(RecordedWorker):
        def start(self):
            raise WorkerFailed("no CUDA driver: install one")

    tuner = Tuner(
        parse([]), hire=lambda site: Absent(smooth, GPU), console=Console(file=io.StringIO())
    )
    assert tuner.run() == NO_DEVICE
    assert "install one" in tuner.console.file.getvalue()
