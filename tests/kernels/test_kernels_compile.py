"""What nvcc makes of the kernels: static_asserts that say what the rules say, and no spills.

These tests need a CUDA toolkit's nvcc, but no GPU; without one they fail and say how to get one.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_rules import BREAKING, KEEPING

from pymm import simulator
from pymm.backends.cuda.nvcc import find_nvcc
from pymm.core.device import Device
from pymm.core.errors import NoDevice
from pymm.core.problem import Problem
from pymm.kernels import KERNELS, Config, Kernel, find_kernel, parse_slug
from pymm.kernels.source import Source, kernel_text, render
from pymm.selection import store

CUDA = [kernel for kernel in KERNELS if kernel.backend == "cuda"]
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
TT = (True, True)
#: The least that kernels of today's GPUs can count on.
ANY = Device("any", "cuda", shared_per_block=99 * 1024, shared_per_sm=100 * 1024)


@pytest.fixture(scope="module")
def nvcc() -> str:
    """Path of the toolkit's nvcc, also where the simulator's has taken the first place."""
    with pytest.MonkeyPatch.context() as patch:
        if simulator.active():
            stand_in = str(Path(simulator.nvcc()).parent)
            folders = os.environ["PATH"].split(os.pathsep)
            patch.setenv("PATH", os.pathsep.join(f for f in folders if f != stand_in))
        try:
            return find_nvcc().path
        except NoDevice as error:
            pytest.fail(f"the CUDA kernels cannot be compiled: {error}")


def odd(kernel: Kernel) -> Problem:
    """A product that leaves every tile partial, of the first type that a kernel takes."""
    return Problem(97, 97, 97, kernel.dtypes[0])


def sentences(kernel: Kernel) -> set[str]:
    """The messages of the static_asserts of a kernel file that speak of its parameters."""
    text = kernel_text("cuda", kernel.file)
    found = re.findall(r'static_assert\([^;]*?,\s*"([^"]+)"\);', text)
    assert len(found) == len(re.findall(r"\bstatic_assert\(", text))
    return set(found) - {"REAL is float or double", "FILL is 0, 1 or 2"}


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
    done = front_end(nvcc, slug, tmp_path)
    assert broken and done.returncode != 0
    said = {sentence for sentence in sentences(config.kernel) if sentence in done.stderr}
    assert said == broken, done.stderr


@pytest.mark.parametrize("slug", KEEPING)
def test_what_the_rules_allow_compiles(nvcc, tmp_path, slug):
    config = parse_slug(slug)
    assert not config.kernel.violations(config, odd(config.kernel), Device("any", "cuda"))
    done = front_end(nvcc, slug, tmp_path)
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


def test_symmetric_products_tile_fits_both_register_rungs():
    """48 x 48, 3 x 3 elements on 16 x 16 threads in double precision (origins.md, O3)."""
    for name in ("register_tile", "transposed_a"):
        config = find_kernel(name).config(dict(MB=48, NB=48, KB=16, TA=3, TB=3))
        assert config.kernel.block(config) == (16, 16, 1)
        problem = Problem(500, 500, 500, "f64", trans_a=True)
        assert config.kernel.violations(config, problem, Device("Tesla", "cuda")) == []
        assert config.kernel.grid(config, problem) == (11, 11, 1)


#: Turing, Ampere (two) and Ada, Hopper: the PTX of a target, and the GPUs that it is assembled for.
#: From 8.0 to 8.9 all texts have the same PTX, for they ask for no architecture in between.
TARGETS = {"75": ("75",), "80": ("80", "86", "89"), "90a": ("90a",)}
ASKED_FOR = {"800", "900"}
#: Configurations with hardly a register to spare, which the rules must let through only if
#: nothing spills: 1024 threads of 64 registers or 256 of 240 and more.
TIGHT = (
    ("register_tile-MB128-NB128-KB16-TA8-TB8", "f32"),
    ("register_tile-MB128-NB128-KB16-TA4-TB16", "f64"),
    ("transposed_a-MB64-NB64-KB16-TA2-TB2", "f32"),
    ("transposed_a-MB128-NB128-KB8-TA4-TB16", "f64"),
)
LARGE_F64 = "MB128-NB128-KB16-TA64-TB32-TK16"
THREE_F64 = "MB64-NB64-KB16-TA32-TB32-TK16"
TWO_F64 = "MB32-NB128-KB16-TA32-TB32-TK16"
#: Every number of warpgroups of kernels 7, 10, 13 and 14, one and two blocks in a cluster.
LARGE_F32 = "MB160-NB256-KB32-ROWS8-EARLY1-STRIDE2-TA20-TB8-SLICES1"
SMALL_F32 = "MB64-NB128-KB32-ROWS8-EARLY1-STRIDE4-TA8-TB8-SLICES1"
F16X3 = "STAGES5-GROUP8"
TF32, SLICED_TF32 = "TB64-SLICES1-STAGES3-SLOTS3", "TB64-SLICES2-STAGES4-SLOTS2"
HOPPER = (
    ("wgmma-MB64-NB192-KB128-TA64-TB192-STAGES2-CLUSTER1-GROUP4-SPLIT1-SLOTS1", "bf16", *TT),
    ("wgmma-MB128-NB256-KB64-TA64-TB256-STAGES4-CLUSTER2-GROUP8-SPLIT1-SLOTS1", "f16", True, False),
    ("wgmma-MB256-NB128-KB64-TA128-TB128-STAGES3-CLUSTER2-GROUP1-SPLIT1-SLOTS2", "bf16", *TT),
    ("wgmma-MB64-NB192-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS3", "bf16_f32", *TT),
    ("wgmma-MB128-NB256-KB64-TA64-TB128-STAGES3-CLUSTER4-GROUP8-SPLIT1-SLOTS1", "f16", True, True),
    ("wgmma-MB128-NB256-KB64-TA64-TB256-STAGES4-CLUSTER1-GROUP8-SPLIT33-SLOTS1", "f16_f32", *TT),
    ("wgmma-MB256-NB192-KB32-TA128-TB192-STAGES6-CLUSTER1-GROUP8-SPLIT1-SLOTS1", "bf16", *TT),
    ("wgmma-MB16-NB256-KB64-TA64-TB256-STAGES4-CLUSTER1-GROUP8-SPLIT1-SLOTS1", "bf16", *TT),
    ("wgmma-MB64-NB32-KB128-TA64-TB64-STAGES4-CLUSTER1-GROUP8-SPLIT2-SLOTS1", "f16", *TT),
    ("wgmma-MB128-NB128-KB32-TA64-TB128-STAGES8-CLUSTER1-GROUP1-SPLIT1-SLOTS2", "bf16_f32", *TT),
    (f"wgmma_tf32-MB256-NB128-KB32-TA256-{TF32}-CLUSTER2-GROUP8-SPLIT1", "tf32", False, False),
    (f"wgmma_tf32-MB160-NB192-KB32-TA160-{TF32}-CLUSTER1-GROUP8-SPLIT2", "tf32", False, False),
    (f"wgmma_tf32-MB128-NB128-KB32-TA64-{TF32}-CLUSTER2-GROUP8-SPLIT1", "tf32", False, False),
    (f"wgmma_tf32-MB224-NB64-KB32-TA224-{TF32}-CLUSTER1-GROUP8-SPLIT2", "tf32", False, True),
    (f"wgmma_tf32-MB64-NB128-KB32-TA32-{TF32}-CLUSTER1-GROUP8-SPLIT3", "tf32", False, True),
    (f"wgmma_tf32-MB64-NB64-KB64-TA64-{SLICED_TF32}-CLUSTER1-GROUP8-SPLIT3", "tf32", False, True),
    (f"wgmma_tf32-MB160-NB64-KB64-TA160-{SLICED_TF32}-CLUSTER1-GROUP8-SPLIT1", "tf32", *TT),
    ("wgmma_tf32x3-MB192-NB128-KB32-TA192-TB64-STAGES2-CLUSTER1-GROUP8-SPLIT1", "tf32x3", *TT),
    (f"wgmma_f16x3-MB128-NB192-KB64-TA64-TB192-{F16X3}-SPLIT1-SLOTS1", "f16x3", False, False),
    (f"wgmma_f16x3-MB128-NB128-KB64-TA64-TB128-{F16X3}-SPLIT4-SLOTS1", "f16x3", *TT),
    (f"tma_f32-{LARGE_F32}-STAGES3-BLOCKS1-GROUP8-SPLIT1-STORE1", "f32", False, False),
    (f"tma_f32-{LARGE_F32}-STAGES3-BLOCKS1-GROUP8-SPLIT3-STORE1", "f32", True, False),
    (f"tma_f32-{SMALL_F32}-STAGES2-BLOCKS3-GROUP8-SPLIT1-STORE1", "f32", False, True),
    (f"tma_f64-{LARGE_F64}-KI8-DEPTHS2-STAGES6-BLOCKS1-GROUP16-SPLIT1", "f64", False, True),
    (f"tma_f64-{LARGE_F64}-KI8-DEPTHS2-STAGES6-BLOCKS1-GROUP16-SPLIT4", "f64", True, False),
    (f"tma_f64-{LARGE_F64}-KI16-DEPTHS1-STAGES6-BLOCKS1-GROUP16-SPLIT1", "f64", True, True),
    (f"tma_f64-{THREE_F64}-KI8-DEPTHS1-STAGES4-BLOCKS3-GROUP8-SPLIT1", "f64", True, False),
    (f"tma_f64-{TWO_F64}-KI8-DEPTHS1-STAGES4-BLOCKS2-GROUP8-SPLIT2", "f64", True, True),
)
#: The same for products that are not deep: kernel 10 turns tiles of A round.
SHALLOW = (
    (f"wgmma_tf32-MB192-NB64-KB32-TA192-{TF32}-CLUSTER1-GROUP8-SPLIT1", "tf32", True, False),
    (f"wgmma_tf32-MB128-NB64-KB64-TA128-{SLICED_TF32}-CLUSTER2-GROUP8-SPLIT1", "tf32", True, False),
)
#: Configurations that spilled before the rules turned them down.
SPILLING = (
    ("register_tile-MB64-NB64-KB16-TA2-TB2", "f32"),
    ("register_tile-MB128-NB64-KB32-TA8-TB1", "f32"),
    ("register_tile-MB128-NB256-KB8-TA8-TB16", "f32"),
    ("register_tile-MB32-NB128-KB32-TA4-TB1", "f32"),
    ("transposed_a-MB32-NB256-KB32-TA1-TB8", "f32"),
    ("transposed_a-MB64-NB64-KB16-TA4-TB1", "f64"),
    ("transposed_a-MB256-NB64-KB16-TA4-TB8", "f64"),
    ("transposed_a-MB256-NB64-KB16-TA16-TB8", "f64"),
)


def shipped_sample() -> Iterator[tuple[Config, Problem]]:
    """Of the shipped records, in the order of their files, the first of each configuration, type,
    layout and part of C: in another layout the same tiles may spill.
    """
    seen = set()
    for path in store.files(None):
        for record in store.read(path).records:
            config, problem = record.config, record.problem
            form = (config.slug, problem.dtype, problem.layout, problem.fill)
            if config.backend == "cuda" and form not in seen:
                seen.add(form)
                yield config, problem


def texts() -> dict[str, Source]:
    """What to compile, by name: every default, whole tiles by rows and partial ones by columns; a
    sample of the shipped records; the tight ones. No text twice.
    """
    wanted = []
    for kernel in CUDA:
        for dtype in kernel.dtypes:
            for problem in (
                Problem(4096, 4096, 4096, dtype),
                Problem(997, 997, 997, dtype, *TT),
                Problem(2914, 2955, 83, dtype),  # little k, and C's rows start anywhere
            ):
                wanted.append((kernel.default_for(problem, ANY), problem))
    wanted += shipped_sample()
    wanted += [(parse_slug(slug), Problem(4096, 4096, 4096, dtype)) for slug, dtype in TIGHT]
    for slug, *kind in HOPPER:
        wanted.append((parse_slug(slug), Problem(4096, 4096, 4096, *kind)))
    for slug, *kind in SHALLOW:
        wanted.append((parse_slug(slug), Problem(4096, 4096, 32, *kind)))
    named = {}
    for config, problem in wanted:
        source = render(config, problem)
        named.setdefault(source.key, (f"{config.slug}-{problem.slug}", source))
    return dict(named.values())


TEXTS = texts()


@pytest.mark.parametrize("name", TEXTS)
def test_no_architecture_spills(nvcc, tmp_path, name):
    """Compiled as for use, on every architecture that the kernel runs on: every default, the tight
    configurations above, and every shipped configuration once in each type, layout and part of C
    that it is shipped for.

    Not compiled: a shipped configuration for further problems of the same form, whose text differs
    in which sides leave partial tiles and in alignment; and what is not shipped. What is tuned has
    its spilled bytes noted beside its time.
    """
    source = TEXTS[name]
    (tmp_path / "gemm.cu").write_text(source.text)
    asked = set(re.findall(r"__CUDA_ARCH__\W+(\w+)", source.text))
    assert asked <= ASKED_FOR
    targets = {
        f"-gencode=arch=compute_{ptx},code=[{','.join(f'sm_{a}' for a in gpus)}]": len(gpus)
        for ptx, gpus in TARGETS.items()
        if (int(ptx[0]), int(ptx[1])) >= source.config.kernel.min_capability
    }
    command = [nvcc, "-fatbin", *targets, "-Xptxas=-v", "-o", "gemm.fatbin", "gemm.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    compiled = re.findall(r"Compiling entry function 'gemm' for 'sm_\w+'", said)
    assert len(set(compiled)) == len(compiled) == sum(targets.values()) > 0, said
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    assert len(spills) >= 2 * len(compiled) and set(spills) == {"0"}, said
    assert "warning" not in said and not re.search(r"\bC75\d\d\b", said), said


#: Blocks in clusters of two and four.
CLUSTERS = [(slug, kind) for slug, *kind in HOPPER + SHALLOW if re.search("CLUSTER[24]", slug)]


@pytest.mark.parametrize("slug, kind", CLUSTERS)
def test_no_block_of_a_cluster_ends_before_what_it_did_to_another(nvcc, tmp_path, slug, kind):
    """The last barrier of a cluster releases and acquires: a relaxed one orders no arrival at
    another block's barrier before its end.
    """
    (tmp_path / "gemm.cu").write_text(render(parse_slug(slug), Problem(64, 64, 64, *kind)).text)
    command = [nvcc, "-ptx", "-arch=sm_90a", "-o", "gemm.ptx", "gemm.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _, gemm = (tmp_path / "gemm.ptx").read_text().split(".entry gemm(")
    barriers = re.findall(r"barrier\.cluster\.(?:arrive|wait)[\w.]*", gemm.split(".entry ")[0])
    assert barriers[-2:] == ["barrier.cluster.arrive.release", "barrier.cluster.wait.acquire"]
    assert len(barriers) == 4


@pytest.mark.parametrize("slug, dtype", SPILLING)
def test_configurations_that_spill_are_refused(slug, dtype):
    config = parse_slug(slug)
    broken = config.kernel.violations(config, Problem(512, 512, 512, dtype), Device("any", "cuda"))
    assert any("register" in reason for reason in broken), broken


@pytest.mark.parametrize("slug, dtype", TIGHT)
def test_tight_configurations_are_allowed(slug, dtype):
    config = parse_slug(slug)
    assert not config.kernel.violations(config, Problem(8, 8, 8, dtype), Device("any", "cuda"))
