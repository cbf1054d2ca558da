"""`pymm precompile`: what it compiles, once, and what it says and leaves when it ends early."""

from __future__ import annotations

import dataclasses
import re
import signal

import numpy as np
import pytest

import pymm
from pymm import precompile
from pymm.backends import open_device
from pymm.backends.base import Compiler
from pymm.core.paths import cache_directory, private
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.selection import precompiled
from pymm.selection.precompiled import Binary, add_to_list, list_path, of_architecture, read_list


@pytest.fixture(autouse=True)
def few(monkeypatch, tmp_path):
    """A cache with no more than the simulator, on whose driver PyCUDA is imported; no tuned
    configurations of the user; and two sizes instead of nine.
    """
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "simulator").symlink_to(private(cache_directory() / "simulator"))
    monkeypatch.setenv("PYMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYMM_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(precompiled, "SHAPES", ((72, 72, 72), (72, 4104, 520)))


def default(dtype: str) -> tuple[Compiler, Binary]:
    """The compiler of a CPU, and a kernel's default there."""
    backend, problem = open_device("cpu:1"), Problem(72, 72, 72, dtype)
    config = find_kernel("blocked", "cpu").default_for(problem, backend.device)
    return backend.compiler, Binary(config, problem)


def counts(text: str) -> tuple[int, int, int]:
    """All, compiled, there before."""
    found = re.search(r"(\d+) kernels for .*: (\d+) compiled, (\d+) were there", text)
    return tuple(map(int, found.groups()))


def test_every_type_of_the_device_is_compiled_once(capsys):
    arguments = ["--device", "cpu:1", "--dtypes", "f64,f16", "--jobs", "2"]
    assert precompile.main(arguments) == 0
    total, made, before = counts(capsys.readouterr().out)
    assert total == made > 0 and before == 0
    assert precompile.main(arguments) == 0
    assert counts(capsys.readouterr().out) == (total, 0, total)


def test_a_product_after_it_compiles_nothing(monkeypatch, capsys):
    assert precompile.main(["--device", "cpu:1", "--dtypes", "f64"]) == 0
    backend = open_device("cpu:1")
    made = []
    compile_ = type(backend.compiler)._compile
    monkeypatch.setattr(
        type(backend.compiler), "_compile", lambda *a: made.append(a) or compile_(*a)
    )
    a, b = np.ones((72, 520)), np.ones((520, 4104))
    np.testing.assert_array_equal(pymm.matmul(a, b, device="cpu:1"), a @ b)
    assert made == []


def test_what_fails_is_named_and_the_rest_is_compiled(monkeypatch, capsys):
    compiler, good = default("f64")
    broken = dataclasses.replace(good.source, text="this is no program")

    @dataclasses.dataclass(frozen=True)
    class Broken(Binary):
        source = broken

    bad = Broken(good.config, Problem(73, 73, 73, "f64"))
    monkeypatch.setattr(precompile, "_wanted", lambda options: (compiler, [bad, good]))
    assert precompile.main([]) == 1
    said = capsys.readouterr()
    assert f"refused {bad.config.slug}:\n" in said.err and "1 failed" in said.out
    assert read_list(list_path(compiler.cache, compiler.target), "cpu") == [good]


def test_ctrl_c_keeps_what_is_done(monkeypatch, capsys):
    """The next run goes on from there."""
    compiler, _ = default("f64")
    wanted = [default(dtype)[1] for dtype in ("f64", "f32", "f16")]
    monkeypatch.setattr(precompile, "_wanted", lambda options: (compiler, wanted))
    add = precompile._add

    def interrupted(*arguments):
        add(*arguments)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(precompile, "_add", interrupted)
        assert precompile.main(["--jobs", "1"]) == 130
    said = capsys.readouterr().out
    assert "1 compiled" in said and "interrupted: 2 are not compiled; run it again" in said
    assert precompile.main([]) == 0
    assert counts(capsys.readouterr().out)[2] >= 1


def test_an_architecture_has_the_records_that_are_shipped():
    binaries = of_architecture("sm_90a", None)
    assert len(binaries) > 100
    assert len({binary.source.key for binary in binaries}) == len(binaries)
    with pytest.raises(ValueError, match="nothing is tuned for sm_75, but for .*sm_90a"):
        of_architecture("sm_75", None)


def test_kernels_are_compiled_for_a_gpu_that_is_not_here(monkeypatch, capsys):
    """By nvcc, which this environment has."""
    two = of_architecture("sm_90a", None)[:2]
    monkeypatch.setattr(precompile, "of_architecture", lambda arch, directory: two)
    assert precompile.main(["--arch", "sm_90a"]) == 0
    assert counts(capsys.readouterr().out) == (2, 2, 0)


@pytest.mark.parametrize(
    "arguments",
    [["--arch", "90"], ["--dtypes", "int8"], ["--jobs", "0"], ["--arch", "sm_80", "--device", "0"]],
)
def test_a_command_line_that_makes_no_sense_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        precompile.main(arguments)
    assert end.value.code == 2


def test_a_device_that_there_is_none_of_is_one_line(capsys):
    assert precompile.main(["--device", "gpu"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_list_is_merged_and_survives_damage(tmp_path):
    first, second = of_architecture("sm_90a", None)[:2]
    path = tmp_path / "precompiled-sm_90a.json"
    assert read_list(path) == []
    add_to_list(path, [first])
    add_to_list(path, [second, first])
    assert read_list(path) == [second, first]
    path.write_text(path.read_text().replace(first.config.kernel_name, "no_kernel"))
    assert all(b.config.kernel_name != "no_kernel" for b in read_list(path))
    for text in ("", "{}", "[1, [2]]", '[["x"]]', "[[", "null"):
        path.write_text(text)
        assert read_list(path) == []
