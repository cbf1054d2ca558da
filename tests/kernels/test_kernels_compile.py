"""What nvcc makes of the kernels: static_asserts that say what the rules say, and no spills.

These tests need a CUDA toolkit's nvcc, but no GPU; without one they fail and say how to get one.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import compiled
import pytest
from broken_rules import BREAKING, KEEPING
from spill_sources import ANY, CUDA, HOPPER, SHALLOW, TIGHT, sources

from pymm import simulator
from pymm.backends.cuda.nvcc import Nvcc
from pymm.core.device import Device
from pymm.core.errors import NoDevice
from pymm.core.problem import Problem
from pymm.kernels import Kernel, find_kernel, parse_slug
from pymm.kernels.source import kernel_text, render

ENDLESS = 10**9
#: What a rule still forbids here it forbids on every device.
LIMITLESS = Device(
    "limitless",
    "cuda",
    max_threads=ENDLESS,
    shared_static=ENDLESS,
    shared_per_block=ENDLESS,
    registers_per_block=ENDLESS,
    max_registers_per_thread=ENDLESS,
    max_threads_per_sm=ENDLESS,
    shared_per_sm=ENDLESS,
)
#: Architectures that a source may ask for in the preprocessor: between 8.0 and 8.9 there is none.
ASKED_FOR = {"800", "900"}


@pytest.fixture(scope="module")
def nvcc() -> Nvcc:
    """The toolkit's nvcc, also where the simulator's has taken the first place."""
    with pytest.MonkeyPatch.context() as patch:
        if simulator.active():
            stand_in = str(Path(simulator.nvcc()).parent)
            folders = os.environ["PATH"].split(os.pathsep)
            patch.setenv("PATH", os.pathsep.join(f for f in folders if f != stand_in))
        try:
            return compiled.project_nvcc()
        except NoDevice as error:
            pytest.fail(f"the CUDA kernels cannot be compiled: {error}")


def odd(kernel: Kernel) -> Problem:
    """A product that leaves every tile partial, of the first type that a kernel takes."""
    return Problem(97, 97, 97, kernel.dtypes[0])


#: Messages of static_asserts that speak of macros or constants that no parameter sets.
OF_NO_PARAMETER = {
    "REAL is float or double",
    "FILL is 0, 1 or 2",
    "a word holds the counts of all rows of a thread, a byte each",
}


def sentences(kernel: Kernel) -> set[str]:
    """The messages of the static_asserts of a kernel file that speak of its parameters."""
    text = kernel_text("cuda", kernel.file)
    found = re.findall(r'static_assert\([^;]*?,\s*"([^"]+)"\);', text)
    assert len(found) == len(re.findall(r"\bstatic_assert\(", text))
    return set(found) - OF_NO_PARAMETER


def front_end(compiler: str, slug: str, folder: Path) -> subprocess.CompletedProcess:
    """Compile a configuration as far as PTX."""
    file = folder / f"{slug}.cu"
    config = parse_slug(slug)
    file.write_text(render(config, odd(config.kernel)).text)
    command = [compiler, "-ptx", "-arch=sm_90a", "-o", str(file.with_suffix(".ptx")), str(file)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("slug", BREAKING)
def test_what_the_rules_forbid_does_not_compile(nvcc, tmp_path, slug):
    config = parse_slug(slug)
    broken = set(config.kernel.violations(config, odd(config.kernel), LIMITLESS))
    done = front_end(nvcc.path, slug, tmp_path)
    assert broken and done.returncode != 0
    said = {sentence for sentence in sentences(config.kernel) if sentence in done.stderr}
    assert said == broken, done.stderr


@pytest.mark.parametrize("slug", KEEPING)
def test_what_the_rules_allow_compiles(nvcc, tmp_path, slug):
    config = parse_slug(slug)
    assert not config.kernel.violations(config, odd(config.kernel), Device("any", "cuda"))
    done = front_end(nvcc.path, slug, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("kernel", CUDA, ids=lambda kernel: kernel.name)
def test_every_static_assert_is_a_rule_and_every_general_rule_is_tried(kernel):
    reasons = {rule.reason for rule in kernel.rules}
    assert sentences(kernel) <= reasons
    tried = [parse_slug(slug) for slug in BREAKING if slug.startswith(f"{kernel.name}-")]
    problem = odd(kernel)
    broken = {r for config in tried for r in kernel.violations(config, problem, LIMITLESS)}
    assert broken == sentences(kernel)


@pytest.mark.parametrize(
    "kernel, dtype",
    [(kernel, dtype) for kernel in CUDA for dtype in kernel.dtypes],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_space_has_valid_configurations_and_the_default_is_one(kernel, dtype):
    problem = Problem(4096, 4096, 4096, dtype)
    valid, rejected = kernel.configs(problem, ANY)
    default = kernel.default_for(problem, ANY)
    assert default in valid
    assert len(valid) == len(set(valid)) and len(valid) + sum(rejected.values()) > len(valid) > 2
    least = Problem(1, 1, 0, dtype)
    assert not kernel.violations(kernel.default_for(least, ANY), least, ANY)


def test_symmetric_products_tile_fits_kernels_03_and_04():
    """48 x 48, 3 x 3 elements on 16 x 16 threads in double precision (origins.md, O3)."""
    for name in ("register_tile", "transposed_a"):
        config = find_kernel(name).config(dict(MB=48, NB=48, KB=16, TA=3, TB=3))
        assert config.kernel.block(config) == (16, 16, 1)
        problem = Problem(500, 500, 500, "f64", trans_a=True)
        assert config.kernel.violations(config, problem, Device("Tesla", "cuda")) == []
        assert config.kernel.grid(config, problem) == (11, 11, 1)


#: Configurations that spilled before the rules turned them down.
SPILLING = (
    ("wgmma-MB256-NB192-KB32-TA128-TB192-STAGES6-CLUSTER1-GROUP8-SPLIT1-SLOTS1", "bf16_f32"),
    ("register_tile-MB64-NB64-KB16-TA2-TB2", "f32"),
    ("register_tile-MB128-NB64-KB32-TA8-TB1", "f32"),
    ("register_tile-MB128-NB256-KB8-TA8-TB16", "f32"),
    ("register_tile-MB32-NB128-KB32-TA4-TB1", "f32"),
    ("transposed_a-MB32-NB256-KB32-TA1-TB8", "f32"),
    ("transposed_a-MB64-NB64-KB16-TA4-TB1", "f64"),
    ("transposed_a-MB256-NB64-KB16-TA4-TB8", "f64"),
    ("transposed_a-MB256-NB64-KB16-TA16-TB8", "f64"),
)


SOURCES = sources()
LISTED = compiled.listed()


@pytest.mark.parametrize("name", SOURCES)
def test_no_architecture_spills(nvcc, name):
    """Compiled as for use, on every architecture that the kernel runs on: every default, tight
    configurations, and every shipped configuration once in each type, layout and part of C that it
    is shipped for. What was compiled before is looked up in a list (tests/support/compiled.py).

    Not compiled: a shipped configuration for further problems of the same form, whose source
    differs in which sides leave partial tiles and in alignment; and what is not shipped. What is
    tuned has its spilled bytes noted with its time.
    """
    source = SOURCES[name]
    assert set(re.findall(r"__CUDA_ARCH__\W+(\w+)", source.text)) <= ASKED_FOR
    rows = compiled.figures(nvcc, source, LISTED)
    assert len({row.gpu for row in rows}) == len(rows) > 0
    assert not any(row.spilled for row in rows), rows
    assert all(0 < row.registers <= 255 for row in rows), rows


#: Blocks in clusters of two and four.
CLUSTERS = [(slug, kind) for slug, *kind in HOPPER + SHALLOW if re.search("CLUSTER(_N)?[24]", slug)]


@pytest.mark.parametrize("slug, kind", CLUSTERS)
def test_blocks_of_a_cluster_wait_for_each_other_at_the_beginning_alone(nvcc, tmp_path, slug, kind):
    """Every thread arrives once. A barrier at the end would take 0.65 us: instead no block arrives
    at a barrier of another one that nobody waits for.
    """
    (tmp_path / "gemm.cu").write_text(render(parse_slug(slug), Problem(64, 64, 64, *kind)).text)
    command = [nvcc.path, "-ptx", "-arch=sm_90a", "-o", "gemm.ptx", "gemm.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _, gemm = (tmp_path / "gemm.ptx").read_text().split(".entry gemm(")
    barriers = re.findall(r"barrier\.cluster\.(?:arrive|wait)[\w.]*", gemm.split(".entry ")[0])
    arrivals = [one for one in barriers if "arrive" in one]
    assert arrivals == ["barrier.cluster.arrive.relaxed"]
    assert set(barriers) - {*arrivals} == {"barrier.cluster.wait"}


@pytest.mark.parametrize("slug, dtype", SPILLING)
def test_configurations_that_spill_are_refused(slug, dtype):
    config = parse_slug(slug)
    broken = config.kernel.violations(config, Problem(512, 512, 512, dtype), Device("any", "cuda"))
    assert any("register" in reason for reason in broken), broken


@pytest.mark.parametrize("slug, dtype", TIGHT)
def test_tight_configurations_are_allowed(slug, dtype):
    config = parse_slug(slug)
    assert not config.kernel.violations(config, Problem(8, 8, 8, dtype), Device("any", "cuda"))
