"""The kernels of experiment O2 with and without guards: what lacks them fails, visibly."""

import csv

import numpy as np
import pytest

import pymm
from pymm.bench import kernels
from pymm.bench.experiments.declaration import ALIASES, FORCED, fixed
from pymm.bench.experiments.guards import lacks_guards
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import KERNELS, Guards, parse_slug
from pymm.kernels.source import render

GPU = Device("some GPU", "cuda", capability=(9, 0))


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("extent", [64, 65])
def test_the_four_kernels_of_the_course(extent, tmp_path, cuda, capsys):
    """Right at a multiple of the block; elsewhere the two without guards say their first wrong
    element, and the exit status says that something is wrong.
    """
    path = tmp_path / "bench.csv"
    where = ["--device", cuda.device.kind, "--csv", str(path), "--rounds", "1"]
    asked = ["--shapes", str(extent), "--dtypes", "f32", "--kernels", ",".join(ALIASES)]
    partial = extent % 32 != 0
    assert kernels.main([*where, *asked]) == int(partial)
    found = {(r["name"], r["variant"]): r for r in rows_of(path) if r["config"]}
    assert len(found) == 4
    for (name, variant), row in found.items():
        if partial and variant == "unguarded":
            assert row["outcome"] == "wrong" and row["detail"].startswith("C["), name
        else:
            assert row["outcome"] == "ok", row["detail"]
    assert "GUARDED0" in capsys.readouterr().out


def test_guards_by_one_option(tmp_path, cuda):
    path = tmp_path / "bench.csv"
    where = ["--device", cuda.device.kind, "--csv", str(path), "--rounds", "1"]
    asked = ["--shapes", "32", "--dtypes", "f64", "--kernels", "00,02"]
    for guarded, variant in (("on", "guarded"), ("off", "unguarded"), ("auto", "default")):
        assert kernels.main([*where, *asked, "--guarded", guarded]) == 0
        assert {row["variant"] for row in rows_of(path)[-2:]} == {variant}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernels", "03", "--guarded", "off"], "03_register_tile: GUARDED=0 cannot be forced"),
        (["--kernels", "kernel00", "--guarded", "on"], "kernel00 is unguarded"),
        (["--guarded", "off"], "name the kernels"),
        (["--kernels", "kernel20"], "no kernel 'kernel20'"),
    ],
)
def test_what_has_no_such_guards_is_refused(arguments, words, tmp_path, cuda, capsys):
    path = tmp_path / "bench.csv"
    with pytest.raises(SystemExit) as ended:
        where = ["--shapes", "9", "--device", cuda.device.kind, "--csv", str(path)]
        kernels.main([*where, *arguments])
    assert ended.value.code == 2 and words in capsys.readouterr().err
    assert not path.exists()


def test_the_suite_passes_if_what_lacks_guards_fails(tmp_path, cuda, capsys):
    path = tmp_path / "suites.csv"
    where = ["--device", cuda.device.kind, "--csv", str(path), "--slowest", "100"]
    assert kernels.main([*where, "--suite", "o2-guards", "--shapes", "32,33"]) == 0
    rows = rows_of(path)
    assert {row["value"] for row in rows if row["m"] == "32"} == {"TEST PASS"}
    failing = {row["config"] for row in rows if row["value"] == "TEST FAIL"}
    assert failing == {
        r["config"] for r in rows if r["m"] == "33" and "GUARDED1" not in r["config"]
    }
    assert all(row["detail"].startswith("C[") for row in rows if row["value"] == "TEST FAIL")
    assert "o2-guards: PASS" in capsys.readouterr().out


def test_a_suite_fails_if_what_lacks_guards_passes(tmp_path, cuda, capsys, monkeypatch):
    """The other way round: an experiment that cannot fail would show nothing."""
    monkeypatch.setattr("pymm.bench.experiments.lines.lacks_guards", lambda config, problem: True)
    path = tmp_path / "suites.csv"
    where = ["--device", cuda.device.kind, "--csv", str(path), "--slowest", "100"]
    assert kernels.main([*where, "--suite", "o2-guards", "--shapes", "32"]) == 1
    assert {row["outcome"] for row in rows_of(path)} == {"wrong"}
    assert "passes without the guards that it needs" in capsys.readouterr().out


def test_forced_macros_are_spelled_and_read_again():
    problem = Problem(641, 641, 641)
    for text in (*ALIASES, "02-MB8-NB8-KB8 writes guarded", "00 all of C"):
        variant, config = fixed(text, problem, GPU)
        assert variant in FORCED and parse_slug(config.slug, forced=True) == config
        assert lacks_guards(config, problem) == (variant in ("unguarded", "writes guarded"))
        assert not lacks_guards(config, Problem(640, 640, 640))
        with pytest.raises(ValueError, match="takes"):
            parse_slug(config.slug)
    with pytest.raises(ValueError, match="names no kernel"):
        fixed("02 half guarded", problem, GPU)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.forceable], ids=lambda k: k.name)
def test_only_a_forced_source_differs(kernel):
    """What is forced is what the problem asks for: the same source, the same record."""
    for extent in (640, 641):
        problem, config = Problem(extent, extent, extent), kernel.default_config
        needed = config.forcing(GUARDED=int(kernel.guarded(config, problem)))
        assert render(needed, problem).text == render(config, problem).text
        other = config.forcing(GUARDED=1 - int(kernel.guarded(config, problem)))
        assert render(other, problem).text != render(config, problem).text


def test_writes_alone_are_guarded_behind_the_loads():
    config = parse_slug("shared_tile-MB8-NB8-KB8").forcing(GUARDED=Guards.WRITE)
    text = render(config, Problem(9, 9, 9)).text
    loads, _, kernel = text.partition("#undef GUARDED\n#define GUARDED 1\n")
    assert "#define GUARDED 0\n" in loads and "load_tile(" in loads and "gemm(" in kernel


def test_matmul_takes_nothing_that_is_forced(cuda):
    a = np.ones((9, 9), np.float32)
    config = parse_slug("shared_tile-MB8-NB8-KB8").forcing(GUARDED=Guards.OFF)
    for given in (config, config.slug):
        with pytest.raises(ValueError, match="experiments alone force macros|takes MB"):
            pymm.matmul(a, a, config=given, device=cuda.device.kind)
