"""The stand-in nvcc: what it refuses, in which words, and PyCUDA's cache on top of it."""

import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.simulator


@pytest.fixture(scope="module")
def nvcc() -> str:
    from pymm.simulator import nvcc

    return nvcc()


@pytest.fixture
def run(nvcc, tmp_path):
    """nvcc on a text in `kernel.cu`, in a directory of its own."""

    def run(text: str, *options: str) -> subprocess.CompletedProcess:
        (tmp_path / "kernel.cu").write_text(text)
        return subprocess.run(
            [nvcc, *options, "kernel.cu"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


RIGHT = 'extern "C" __global__ void f(float* a) { a[0] = 1; }\n'


@pytest.mark.parametrize(
    "options",
    [
        ["--cubin", "-arch", "sm_90"],
        ["-cubin", "-arch=sm_90a", "-O3", "-DX=1", "-D", "Y", "-I/usr/include", "-std=c++17"],
        ["--cubin", "--gpu-architecture=sm_90", "-Xptxas=-O3", "-Xcompiler", "-fno-builtin", "-w"],
        ["--cubin", "-gencode", "arch=compute_90,code=sm_90", "-lineinfo", "--use_fast_math"],
    ],
)
def test_command_lines(run, tmp_path, options):
    done = run(RIGHT, *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "kernel.cubin").stat().st_size > 1000


def test_the_output_is_named(run, tmp_path):
    assert run(RIGHT, "--ptx", "-o", "other.bin").returncode == 0
    assert (tmp_path / "other.bin").exists() and not (tmp_path / "kernel.ptx").exists()


@pytest.mark.parametrize(
    "options, words",
    [
        (["--cubin", "--no-such-option"], "nvcc fatal   : Unknown option '--no-such-option'"),
        (["--cubin", "-arch=sm_12"], "Value 'sm_12' is not defined for option 'gpu-architecture'"),
        (["--cubin", "other.cu"], "A single input file is required"),
    ],
)
def test_command_lines_that_nvcc_refuses(run, tmp_path, options, words):
    done = run(RIGHT, *options)
    assert done.returncode == 1 and words in done.stderr
    assert not (tmp_path / "kernel.cubin").exists()


# text: (line of the error, words)
REFUSED = {
    "an unknown name": (RIGHT + "__device__ int g() {\n  return unknown;\n}", 3, "unknown"),
    "a static_assert": (RIGHT + 'static_assert(KB == 3, "KB must be 3");', 2, "KB must be 3"),
    "a template in extern C": (
        'extern "C" {\ntemplate <int n> __device__ int f();\n}',
        2,
        "template with C linkage",
    ),
    "inline PTX": (
        RIGHT + '\n__device__ void g() { asm volatile("bar.sync 0;"); }',
        3,
        "inline PTX cannot be simulated",
    ),
    "clusters of a template": (
        "\ntemplate <int n> __global__ void __cluster_dims__(n, 1, 1) f() {}",
        2,
        "f: templates with __cluster_dims__ cannot be simulated",
    ),
    "an initializer": (
        "__global__ void f() {\n  __shared__ int x = 3;\n}",
        2,
        "__shared__ variable may not have an initializer",
    ),
    "shared memory outside": ("\n__shared__ float x[4];", 2, "declare __shared__ x inside"),
    "a #line": (RIGHT + '#line 70 "03_register_tile.cu"\nint x = unknown;', 70, "unknown"),
    "half a kernel": ("__global__ void f(", 1, "never closed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_texts_that_it_refuses(run, tmp_path, case):
    """With file and line as the user wrote them, a status that is not 0, and no output file."""
    text, line, words = REFUSED[case]
    done = run(text, "--cubin", "-DKB=4")
    assert done.returncode != 0 and words in done.stderr and "error" in done.stderr
    if case != "half a kernel":
        name = "03_register_tile.cu" if "#line" in text else "kernel.cu"
        assert f"{name}:{line}:" in done.stderr, done.stderr
    assert not (tmp_path / "kernel.cubin").exists()


def test_static_shared_memory_has_its_limit(run):
    """48 KiB, of each kernel by itself, in the words of ptxas."""
    text = """extern "C" __global__ void fits(float* a) {
        __shared__ float x[48 * 1024 / 4];
        a[0] = x[0] = 1;
    }
    extern "C" __global__ void other(float* a) {
        __shared__ alignas(16) double x[SIZE], y;
        a[0] = x[0] = y = 1;
    }"""
    assert run(text, "--cubin", "-DSIZE=6142").returncode == 0
    done = run(text, "--cubin", "-DSIZE=6144")
    assert done.returncode != 0
    assert "Entry function 'other' uses too much shared data (0xc008 bytes, 0xc000 max)" in (
        done.stderr
    )


def test_declarations_of_shared_memory(run):
    """The spellings that kernels use, in a template, with macros, attributes and several names."""
    text = """#define TILE_OF(...) __shared__ __VA_ARGS__
    template <typename T, int n> struct Box { T x[n]; };
    template <typename T, int n> __device__ T sum() {
        TILE_OF(Box<T, n>) box;
        alignas(16) static __shared__ T a[n][n + (n > 2 ? 1 : 0)], b[2];
        __shared__ __align__(32) volatile
            float c[n];
        T __shared__ *p, *q[2];
        static_assert(sizeof(a) == sizeof(T) * n * (n + 1) && sizeof(q) == 16);
        p = &a[0][0];
        box.x[0] = b[1] = c[0] = 1;
        return *p;
    }
    extern "C" __global__ void f(float* out) {
        extern __shared__ __align__(16) unsigned char bytes[];
        out[0] = sum<float, 3>() + sum<double, 4>() + bytes[0];
    }"""
    done = run(text, "--cubin", "-Xptxas", "-v")
    assert done.returncode == 0, done.stderr
    assert "ptxas info    : Function 'f': Used 32 registers" in done.stderr


def test_a_module_loads_no_library_that_it_does_not_need(run, tmp_path):
    """Neither the C++ library nor g++'s sanitizers; the first where a kernel uses it."""
    for text, wanted in ((RIGHT, False), (RIGHT.replace("= 1", "= *new float(1)"), True)):
        assert run(text, "--cubin").returncode == 0
        needed = subprocess.run(
            ["readelf", "-d", str(tmp_path / "kernel.cubin")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert ("libstdc++" in needed) == wanted and "san.so" not in needed


def test_a_function_that_is_nowhere_is_refused(run, tmp_path):
    done = run("extern __device__ void nowhere();\n" + RIGHT.replace("a[0]", "nowhere(), a[0]"))
    assert done.returncode != 0 and "nowhere" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kernel.cu"]


@pytest.mark.parametrize(
    "options, environment, flag",
    [
        (["-std=c++17", "-O3", "-I/usr/include"], {}, ""),
        (["-std=c++20"], {}, "-std=c++20"),
        (["-fmad=false"], {}, "-ffp-contract=off"),
        ([], {"PYMM_SIMULATOR_MARCH": "-march=x86-64"}, "-march=x86-64"),
    ],
)
def test_what_kernels_share_is_compiled_with_the_flags_of_each(
    run, tmp_path, monkeypatch, options, environment, flag
):
    """Anew where they are not those that it was built with."""
    asked = tmp_path / "asked"
    compiler = tmp_path / "counting-compiler"
    compiler.write_text(f'#!/bin/sh\necho "$*" >> "{asked}"\nexec g++ "$@"\n')
    compiler.chmod(0o700)
    for name, value in {"CXX": str(compiler), **environment}.items():
        monkeypatch.setenv(name, value)
    assert run(RIGHT, "--cubin", *options).returncode == 0
    compiled = [line.split() for line in asked.read_text().splitlines() if "runtime.cpp" in line]
    assert bool(compiled) == bool(flag) and all(flag in words for words in compiled)


def test_the_compiler_is_read_as_bytecode(nvcc, tmp_path):
    """In a copy of its folder, whose files have other dates, too."""
    own = tmp_path / "own"
    shutil.copytree(Path(nvcc).parents[1], own)
    for name in ("nvcc", "translate", "brackets"):
        (own / "compiler" / f"{name}.py").write_text("neither read nor Python")
    (tmp_path / "kernel.cu").write_text(RIGHT)
    command = [str(own / "bin" / "nvcc"), "--cubin", "kernel.cu"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "kernel.cubin").exists()


def test_the_architecture_is_a_macro(run):
    text = RIGHT + "static_assert(__CUDA_ARCH__ == ARCH && PYMM_SIMULATOR);"
    assert run(text, "--cubin", "-arch=sm_80", "-DARCH=800").returncode == 0
    assert run(text, "--cubin", "-arch=sm_120", "-DARCH=1200").returncode == 0
    assert run(text, "--cubin", "-DARCH=900").returncode == 0


# --- under PyCUDA ---------------------------------------------------------------------------------


@pytest.fixture
def pycuda_compile():
    import pymm.simulator

    pymm.simulator.activate()
    from pycuda import compiler

    return compiler


def test_compile_errors_reach_python(pycuda_compile, tmp_path):
    """The words of the compiler, in PyCUDA's exception."""
    from pycuda.driver import CompileError

    with pytest.raises(CompileError) as caught:
        pycuda_compile.compile("__global__ void f() { g(); }", arch="sm_90", cache_dir=False)
    assert "kernel.cu:2:" in caught.value.stderr and "g" in caught.value.stderr


@pytest.mark.parametrize("include", ["", "#include <stdint.h>\n"])
def test_the_cache_of_source_module(pycuda_compile, nvcc, tmp_path, include):
    """A second compile asks the compiler for nothing but, with an #include, the preprocessor."""
    counter, calls = tmp_path / "counting-nvcc", tmp_path / "calls"
    counter.write_text(f'#!/bin/sh\necho "$1" >> "{calls}"\nexec "{nvcc}" "$@"\n')
    counter.chmod(0o700)
    cache = tmp_path / "cache"
    cache.mkdir()
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module = pycuda_compile.compile(
                include + RIGHT,
                nvcc=str(counter),
                arch="sm_90",
                no_extern_c=True,
                cache_dir=str(cache),
            )
        assert module[:4] == b"\x7fELF"
    assert calls.read_text().split().count("--cubin") == 1
    assert calls.read_text().split().count("--preprocess") == (2 if include else 0)
    assert len(list(cache.iterdir())) == 1


def test_a_module_for_another_device_is_refused(pycuda_compile):
    import pycuda.driver as drv

    drv.init()
    module = pycuda_compile.compile(RIGHT, arch="sm_80", no_extern_c=True, cache_dir=False)
    context = drv.Device(0).retain_primary_context()
    context.push()
    try:
        with pytest.raises(drv.RuntimeError, match="no kernel image is available"):
            drv.module_from_buffer(module)
        with pytest.raises(drv.LogicError, match="device kernel image is invalid"):
            drv.module_from_buffer(b"\x7fELF" + bytes(100))
        with pytest.raises(drv.LogicError, match="device kernel image is invalid"):
            drv.module_from_buffer(Path(os.__file__).read_bytes())
    finally:
        context.pop()


def test_the_version_names_the_simulator(nvcc):
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    assert "pymm simulator" in done.stdout and "release 13.0," in done.stdout
