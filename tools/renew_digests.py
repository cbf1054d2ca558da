"""Renews the digests of tuned records and measured rows whose kernels were not changed by a change
of their source.

    python tools/renew_digests.py BASE_COMMIT

A record is stale when the code of its kernel is not what it was tuned with. Code that a macro
leaves out of a configuration changes nothing for it, nor do other names: for every record and row
with the digest that its kernel has at BASE_COMMIT, both sources are rendered and compared,

1. preprocessed: equal token by token, without static_asserts;
2. preprocessed: equal if identifiers are replaced one by one, each always by the same other one and
   no two by the same (strings, hence inline PTX, and entry points being equal);
3. compiled to PTX (sm_90a): equal byte by byte, so that the assembler makes the same binary;
4. assembled: the binaries (cubin) equal byte by byte.

Of a product whose operands are read as they are, `repack` is left out of 3, for it is not launched,
and 4 is not tried. Of one whose rows of C all start at multiples of 16 bytes, 3 is tried again with
the kernel's parameter `boxed` assumed to be 1, which says that TMA can store C: what stores other
rows is left out.
The first that holds is enough. Then the digest becomes that of the working tree, in tuning_configs/
and benchmarks/results/. What is left stale must be tuned again. The digest of a step of a suite
stays: the suite measures it again.

Rows of tests/support/data/compiled.csv stay those of sources that are equal token by token, when
preprocessed for each architecture; tests/support/compiled.py compiles the others.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]  # a checkout need not be installed

import compiled  # noqa: E402
import spill_sources  # noqa: E402

from pymm.backends.cuda.nvcc import find_nvcc  # noqa: E402
from pymm.core.problem import Problem, stored_shapes  # noqa: E402
from pymm.kernels import (  # noqa: E402
    Config,
    find_kernel,
    parse_slug,
    source,
)
from pymm.selection import store  # noqa: E402

#: Compilers at a time.
JOBS = 2


@contextmanager
def kernels_of(tree: Path) -> Iterator[None]:
    """Kernel texts come from another tree meanwhile."""
    here, caches = source.shipped_folder, (source.kernel_text, source._render)
    for known in caches:
        known.cache_clear()
    source.shipped_folder = lambda folder: tree / folder
    try:
        yield
    finally:
        source.shipped_folder = here
        for known in caches:
            known.cache_clear()


_TOKEN = re.compile(rb'"(?:\\.|[^"\\])*"|[A-Za-z_]\w*|\d[\w.]*|\S')

#: Entry points, which launches know by name.
_ENTRIES = {b"gemm", b"repack", b"combine", b"mirror"}


def differ_in_names_alone(old: bytes, new: bytes) -> bool:
    """True if one preprocessed source is the other with identifiers renamed one to one."""
    olds, news = _TOKEN.findall(old), _TOKEN.findall(new)
    if len(olds) != len(news):
        return False
    names: dict[bytes, bytes] = {}
    for before, after in zip(olds, news, strict=True):
        named = before[:1].isalpha() or before[:1] == b"_"
        if not named or before in _ENTRIES:
            if before != after:
                return False
        elif names.setdefault(before, after) != after:
            return False
    return len(set(names.values())) == len(names)


def repacks(config: Config, problem: Problem) -> bool:
    """Whether dense operands are repacked before the kernel of a configuration multiplies them."""
    tma = config.kernel.tma
    if tma is None:
        return False
    loaded, size = tma.as_loaded(problem), problem.numpy_dtype.itemsize
    as_stored = loaded.trans_a == problem.trans_a, loaded.trans_b == problem.trans_b
    even = [shape[2] * size % 16 == 0 for shape in stored_shapes(problem)[:2]]
    return tma.terms > 1 or any(
        not tma.reads_in_place(problem, operand) and not (as_stored[operand] and even[operand])
        for operand in (0, 1)
    )


def aligned_c(problem: Problem) -> bool:
    """Whether all rows of a dense C start at multiples of 16 bytes."""
    return problem.n * problem.out_dtype.itemsize % 16 == 0


def with_boxed(text: str) -> str:
    """A source whose entry assumes that `boxed` is 1; the same where it has no such parameter."""
    entry = re.compile(r"(\bgemm\([^{]*\bint boxed\b[^{]*\{)")
    return entry.sub(r"\1 __builtin_assume(boxed == 1);", text)


def without_repack(ptx: bytes) -> bytes:
    """PTX without the entry point `repack` and the numbers that depend on what precedes others."""
    kept = re.sub(rb"\.visible \.entry repack\(.*?\n\}\n", b"", ptx, flags=re.DOTALL)
    kept = re.sub(rb"(?m)^.*repack.*$", b"", kept)  # its shared memory
    return re.sub(rb"\$L__BB\d+_|__unnamed_\d+", b"", kept)


class Comparison:
    """The texts of the base commit and of the working tree, rendered and compared."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree, self.folder, self.nvcc = tree, folder, find_nvcc().path
        self._pairs: dict[tuple[Config, Problem], tuple[str, str, bool, bool]] = {}
        self._same: dict[tuple[str, str, bool, bool], bool] = {}

    @cache  # noqa: B019  (one of these lives as long as the process)
    def digests(self, backend: str, name: str) -> tuple[str, str]:
        """Of a kernel: of the base commit and of the working tree; "" where it is missing."""
        kernel = find_kernel(name, backend)
        with kernels_of(self.tree):
            try:
                old = source.kernel_digest(kernel.backend, kernel.file)
            except OSError:
                old = ""
        return old, source.kernel_digest(kernel.backend, kernel.file)

    def add(self, pairs: Sequence[tuple[Config, Problem]]) -> None:
        """Compare both texts of all of these."""
        pairs = list(dict.fromkeys(pairs))
        with kernels_of(self.tree):
            old = [source.render(*pair).text for pair in pairs]
        new = [source.render(*pair).text for pair in pairs]
        moved = [repacks(*pair) for pair in pairs]
        boxed = [aligned_c(problem) for _, problem in pairs]
        self._pairs |= dict(zip(pairs, zip(old, new, moved, boxed, strict=True), strict=True))
        texts = list(dict.fromkeys(self._pairs[pair] for pair in pairs))
        with ThreadPoolExecutor(JOBS) as pool:
            self._same |= dict(zip(texts, pool.map(self._compare, texts), strict=True))

    def same(self, config: Config, problem: Problem) -> bool:
        """Whether the configuration's kernel is what it was."""
        return self._same[self._pairs[config, problem]]

    def _compare(self, texts: tuple[str, str, bool, bool]) -> bool:
        *both, moved, boxed = texts
        old, new = map(self._preprocessed, both)
        if old == new or differ_in_names_alone(old, new):
            return True
        kept = (lambda ptx: ptx) if moved else without_repack
        old, new = map(self._ptx, both)
        if kept(old) == kept(new) or (moved and self._cubin(old) == self._cubin(new)):
            return True
        taken = [with_boxed(text) for text in both]
        return boxed and taken != both and kept(self._ptx(taken[0])) == kept(self._ptx(taken[1]))

    def same_on_all(self, old: str, new: str) -> bool:
        """Whether two texts are equal token by token for every architecture."""
        for arch in (f"{ptx[:2]}0" for ptx in compiled.TARGETS):
            before, after = (self._preprocessed(text, arch) for text in (old, new))
            if _TOKEN.findall(before) != _TOKEN.findall(after):
                return False
        return True

    def _preprocessed(self, text: str, arch: str = "900") -> bytes:
        command = ["g++", "-E", "-P", "-x", "c++", f"-D__CUDA_ARCH__={arch}", "-"]
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
        code = b" ".join(done.stdout.split())
        code = re.sub(rb'\bstatic_assert ?\([^;]*?, ?(?:"[^"]*" ?)+\);', b"", code)  # makes no code
        return re.sub(rb"\bif \(1 > 1\) [^;{}]*; ", b"", code)  # what no cluster of one block does

    def _ptx(self, text: str) -> bytes:
        """Without comments and line numbers."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            place = Path(folder) / "gemm.cu"
            place.write_text(re.sub(r"^#line.*$", "", text, flags=re.MULTILINE))
            command = [self.nvcc, "-ptx", "-arch=sm_90a", "-o", "gemm.ptx", "gemm.cu"]
            subprocess.run(command, cwd=folder, capture_output=True, check=True)
            return re.sub(rb"//.*", b"", place.with_suffix(".ptx").read_bytes())

    def _cubin(self, ptx: bytes) -> bytes:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            place = Path(folder) / "gemm.ptx"
            place.write_bytes(ptx)
            command = [self.nvcc, "-cubin", "-arch=sm_90a", "-o", "gemm.cubin", "gemm.ptx"]
            subprocess.run(command, cwd=folder, capture_output=True, check=True)
            return place.with_suffix(".cubin").read_bytes()


class Counts:
    """How many digests were renewed and how many left stale, by kernel."""

    def __init__(self) -> None:
        self.renewed: Counter[str] = Counter()
        self.stale: Counter[str] = Counter()

    def show(self, what: str) -> None:
        """A line for each kernel."""
        for name in sorted({*self.renewed, *self.stale}):
            print(f"{what}: {name}: {self.renewed[name]} renewed, {self.stale[name]} left stale")


def renew_records(path: Path, comparison: Comparison, counts: Counts) -> None:
    """The records of one YAML, which is written as the store does."""
    table = store.read(path)
    renewed, waiting = list(table.records), []
    for place, record in enumerate(table.records):
        kernel = record.config.kernel
        old, new = comparison.digests(kernel.backend, kernel.name)
        if record.digest == old != new:
            waiting.append((place, record, new))
    comparison.add([(record.config, record.problem) for _, record, _ in waiting])
    for place, record, new in waiting:
        if comparison.same(record.config, record.problem):
            renewed[place] = replace(record, digest=new)
            counts.renewed[record.config.kernel_name] += 1
        else:
            counts.stale[record.config.kernel_name] += 1
    replace_text(path, store.render_table(replace(table, records=tuple(renewed))))


def renew_rows(path: Path, comparison: Comparison, counts: Counts) -> None:
    """The rows of one CSV that name a configuration and its source."""
    text = path.read_text(encoding="utf-8")
    header, *rows = csv.reader(io.StringIO(text))
    if not {"source", "config", "dtype", "layout"} <= set(header):
        return
    at = {name: place for place, name in enumerate(header)}
    waiting = [found for row in rows if (found := _changed(row, at, comparison))]
    comparison.add([(config, problem) for _, config, problem, _ in waiting])
    for row, config, problem, new in waiting:
        if comparison.same(config, problem):
            row[at["source"]] = new
            counts.renewed[config.kernel_name] += 1
        else:
            counts.stale[config.kernel_name] += 1
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    assert waiting or out.getvalue() == text, f"{path} would be written in another form"
    replace_text(path, out.getvalue())


def renew_list(comparison: Comparison, counts: Counts) -> None:
    """The list of what nvcc made of sources."""
    known, new = compiled.listed(), spill_sources.sources()
    versions = sorted({row.nvcc for rows in known.values() for row in rows})
    with kernels_of(comparison.tree):
        old = spill_sources.sources()
    pairs = [(old[name], source) for name, source in new.items() if name in old]
    with ThreadPoolExecutor(JOBS) as pool:
        same = list(pool.map(lambda pair: comparison.same_on_all(*(x.text for x in pair)), pairs))
    kept = [row for rows in known.values() for row in rows]
    for (before, after), equal in zip(pairs, same, strict=True):
        digests = [(compiled.digest(v, before), compiled.digest(v, after)) for v in versions]
        moved = [(here, there) for here, there in digests if here in known and here != there]
        name = after.config.kernel_name
        if moved:
            (counts.renewed if equal else counts.stale)[name] += 1
        for here, there in moved if equal else ():
            kept += [replace(row, digest=there) for row in known[here]]
    wanted = {compiled.digest(v, source) for v in versions for source in new.values()}
    compiled.write([row for row in kept if row.digest in wanted])


def _changed(
    row: list[str], at: dict[str, int], comparison: Comparison
) -> tuple[list[str], Config, Problem, str] | None:
    """The row, its configuration and product and the new digest, if it has the old one."""
    if not row[at["source"]]:
        return None
    config = _config(row[at["config"]])
    if config is None:
        return None
    kernel = config.kernel
    old, new = comparison.digests(kernel.backend, kernel.name)
    if row[at["source"]] != old or old == new:
        return None
    problem = _problem({name: row[place] for name, place in at.items()})
    if problem.dtype not in kernel.dtypes:  # it was computed in the type's plain one
        problem = replace(problem, dtype=problem.type.plain)
    return row, config, problem, new


def _config(slug: str) -> Config | None:
    """The configuration of a GPU's or a CPU's kernel that a slug spells, if it spells one."""
    for backend in ("cuda", "cpu"):
        with suppress(ValueError):
            return parse_slug(slug, backend)
    return None


def _problem(cells: dict[str, str]) -> Problem:
    """The product of a row."""
    sizes = [int(cells[name]) for name in ("m", "n", "k")]
    trans = [letter == "T" for letter in cells["layout"]]
    return Problem(*sizes, cells["dtype"], *trans, op=cells.get("op", "gemm"))


def replace_text(path: Path, text: str) -> None:
    """Write a file anew if it changes, all of it or nothing."""
    if text == path.read_text(encoding="utf-8"):
        return
    beside = path.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def main(base: str) -> int:
    """The command. Returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        tree, work = Path(folder) / "tree", Path(folder) / "work"
        work.mkdir()
        command = ["git", "archive", base, "cuda_src", "cpu_src"]
        archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar.getmembers():
                if member.isdir():
                    continue
                (tree / member.name).parent.mkdir(parents=True, exist_ok=True)
                (tree / member.name).write_bytes(tar.extractfile(member).read())
        for path in ROOT.glob("c*_src/**/*"):  # a file that is new was empty before
            if path.is_file() and not (tree / path.relative_to(ROOT)).exists():
                (tree / path.relative_to(ROOT)).touch()
        comparison, records, rows = Comparison(tree, work), Counts(), Counts()
        for path in sorted((ROOT / "tuning_configs").glob("*.yaml")):
            renew_records(path, comparison, records)
        records.show("records")
        for path in sorted((ROOT / "benchmarks" / "results").glob("*/*.csv")):
            renew_rows(path, comparison, rows)
        rows.show("rows")
        listed = Counts()
        renew_list(comparison, listed)
        listed.show("compiled")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", metavar="BASE_COMMIT", help="the commit before the change")
    sys.exit(main(parser.parse_args().base))
