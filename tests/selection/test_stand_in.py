"""Products whose kernel is not compiled, where `pymm precompile` has compiled others: which of them
runs, for how long, and that the product is right.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import pymm
from pymm.backends import behind, open_device
from pymm.core.paths import cache_directory, private
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.selection import stand_in
from pymm.selection.precompiled import Binary, add_to_list, list_path
from pymm.selection.stand_in import forget_stand_ins, serves

pytestmark = pytest.mark.simulator

#: Checks every index, and rows of float32 may start anywhere.
GENERAL = Binary(
    find_kernel("register_tile", "cuda").config({"MB": 32, "NB": 32, "KB": 8, "TA": 4, "TB": 4}),
    Problem(73, 73, 73, "f32"),
)


@pytest.fixture
def backend(tmp_path, monkeypatch):
    """The simulator with `GENERAL` compiled and listed, in a cache of its own."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / "simulator").symlink_to(private(cache_directory() / "simulator"))
    monkeypatch.setenv("PYMM_CACHE_DIR", str(cache))
    monkeypatch.delenv("PYMM_COMPILE", raising=False)
    opened = open_device("cuda", cache)
    opened.precompile(GENERAL.source)
    add_to_list(list_path(cache, opened.compiler.target), [GENERAL])
    forget_stand_ins()
    yield opened
    forget_stand_ins()


@pytest.fixture
def later(monkeypatch):
    """What would be compiled behind, in the order that it was asked for: called by the test."""
    tasks = []

    def ask(compiler, source, then):
        tasks.append(lambda: (compiler.build(source), then()))

    monkeypatch.setattr(stand_in, "compile_behind", ask)
    return tasks


def operands(m=40, n=37, k=21):
    rng = np.random.default_rng(m)
    a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
    return a, b, a.astype(float) @ b


def test_a_product_that_is_not_compiled_keeps_a_stand_in_for_this_process(backend, later):
    a, b, right = operands()
    product = pymm.plan(a, b, device=backend)
    assert product.config == GENERAL.config and "compiled already" in product.choice.reason
    np.testing.assert_allclose(product(), right, rtol=1e-5)
    first = pymm.matmul(a, b, device=backend)
    assert product.resources.max_threads > 0 and len(later) == 1
    assert pymm.explain(a, b, device=backend).config == GENERAL.config
    later[0]()
    pymm.reload()
    np.testing.assert_array_equal(pymm.matmul(a, b, device=backend), first)
    assert pymm.plan(a, b, device=backend).config == GENERAL.config
    forget_stand_ins()  # as another process
    assert pymm.plan(a, b, device=backend).config != GENERAL.config


def test_with_replace_the_next_call_has_the_best(backend, later, monkeypatch):
    monkeypatch.setenv("PYMM_COMPILE", "replace")
    a, b, right = operands()
    out = np.empty_like(right, np.float32)
    for _ in range(2):
        pymm.matmul(a, b, out, device=backend)
    assert len(later) == 1
    later[0]()
    assert pymm.plan(a, b, device=backend).config != GENERAL.config
    np.testing.assert_allclose(pymm.matmul(a, b, out, device=backend), right, rtol=1e-5)


def test_with_wait_there_is_one_binary_always(backend, later, monkeypatch):
    monkeypatch.setenv("PYMM_COMPILE", "wait")
    a, b, _ = operands()
    assert pymm.plan(a, b, device=backend).config != GENERAL.config and later == []


def test_a_setting_that_there_is_none_of_is_named(backend, monkeypatch):
    monkeypatch.setenv("PYMM_COMPILE", "never")
    a, b, _ = operands()
    with pytest.raises(ValueError, match="PYMM_COMPILE='never' is none of keep, replace, wait"):
        pymm.plan(a, b, device=backend)


def test_what_the_caller_asks_for_runs(backend, later):
    a, b, right = operands()
    asked = pymm.plan(a, b, device=backend, kernel="naive")
    assert asked.config.kernel_name == "naive"
    biased = pymm.plan(a, b, device=backend, bias=np.ones(37, np.float32))
    assert biased.config != GENERAL.config and later == []
    np.testing.assert_allclose(biased(), right + 1, rtol=1e-5)


def test_binaries_that_are_gone_stand_in_for_nothing(backend, later):
    for path in backend.compiler.folder(GENERAL.source).iterdir():
        path.unlink()
    a, b, _ = operands()
    assert pymm.plan(a, b, device=backend).config != GENERAL.config and later == []


@pytest.mark.parametrize(
    ("problem", "alignment", "able"),
    [
        (Problem(1, 1, 1, "f32"), 4, True),
        (Problem(64, 64, 64, "f32"), 16, True),
        (Problem(31, 33, 0, "f32"), 4, True),
        (Problem(73, 73, 73, "f32", trans_a=True), 4, False),
    ],
)
def test_a_kernel_that_checks_every_index_serves_its_layout(problem, alignment, able):
    assert serves(GENERAL, GENERAL.source, problem, alignment) is able


def test_a_kernel_without_checks_serves_whole_tiles_alone():
    whole = Binary(GENERAL.config, Problem(64, 64, 64, "f32"))
    assert serves(whole, whole.source, Problem(32, 96, 8, "f32"), 16)
    assert not serves(whole, whole.source, Problem(33, 96, 8, "f32"), 16)


def test_alignment_is_asked_for():
    config = find_kernel("pipelined", "cuda").default_config
    aligned = Binary(config, Problem(72, 72, 72, "f32"))
    assert serves(aligned, aligned.source, Problem(40, 40, 40, "f32"), 16)
    assert not serves(aligned, aligned.source, Problem(40, 40, 40, "f32"), 8)


def test_the_thread_compiles_a_source_once(backend):
    done, source = threading.Event(), Binary(GENERAL.config, Problem(64, 64, 64, "f32")).source
    for _ in range(3):
        behind.compile_behind(backend.compiler, source, done.set)
    assert done.wait(120) and backend.compiler.has(source)
