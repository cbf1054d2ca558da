"""Expected times of configurations on a GPU that was surveyed: those of the kernels' models,
corrected by measured times of similar products.

A survey holds hundreds to thousands of random products of each type, and products of language
models, with the measured times of the configurations that were expected to be quickest and of two
others. The correction of a time is the logarithm of measured / expected. Corrections are predicted
by a Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
section 2.2) over features of the product and the configuration: near points have similar
corrections; far from all points that were measured, the mean correction is predicted.
benchmarks/survey.py measures, fits and writes the file that is read here. benchmarks/LOG.md says
how good the predictions are for products left out of the fit.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

import numpy as np

from pymm.core.device import Device
from pymm.core.problem import Problem

if TYPE_CHECKING:
    from pymm.kernels.kernel import Config, Kernel

#: Factor by which a product's extents and operations may exceed those of the surveyed products, or
#: its extents fall short of them.
_BEYOND = 1.1

#: Types that have no survey of their own, because another type's kernels take the same time.
_SAME_TIMES_AS = {"f16": "bf16", "f16_f32": "bf16_f32"}

#: Of a kernel's configurations, those are compared that its model expects to take at most this many
#: times as long as the quickest; of 160 products, 1.6 changed no choice.
_WITHIN = 1.35

#: At most so many are compared; of 160 products of about one wave in 16 bits, for which most forms
#: are offered, twice as many changed two choices.
_COMPARED = 32

#: Measurements of a form that a survey must have for the form to be chosen. What is predicted from
#: fewer is little more than what the kernel's model expects: a form of kernel 07 with KB = 128,
#: measured five times, was expected to multiply 128 x 4096 x 7168 in 20 us and took 30, a form with
#: KB = 64 took 26. For products left out of the fits of two GPUs, 12 cost up to 0.2 %, 20 up to
#: 0.5 %.
_ENOUGH = 12

#: The form counts for products at most so many times as deep as the third deepest of those that it
#: was measured for: a form of kernel 12 with 101 times, of which two are of k above 300 (1476 and
#: 2535), was expected to multiply 782 x 118 x 4813 in 13.4 us and took 22.5.
_DEEPER, _AS_DEEP = 2.5, 3

#: The parameters of a configuration in a survey's .npz file; 1 for those that a kernel lacks. New
#: ones come last: files that were written before lack their columns.
PARAMETERS = (
    *("MB", "NB", "KB", "TA", "TB", "STAGES", "BLOCKS", "SLICES", "CLUSTER", "STORE", "SPLIT"),
    "CLUSTER_N",
)

#: Those of them that say which form of a kernel a configuration is.
_OF_FORM = tuple(name for name in PARAMETERS if name not in ("STORE", "SPLIT"))

#: What each feature is multiplied by: the reciprocal of its length scale.
SCALES = {
    "m": 0.07,
    "n": 0.03,
    "k": 0.23,
    "waves": 0.29,
    "last wave": 0.56,
    "parts": 0.40,
    "rows filled": 1.47,
    "columns filled": 0.84,
    "steps": 0.35,
    "A transposed": 0.41,
    "B transposed": 0.43,
    "A aligned": 0.31,
    "B aligned": 0.14,
    "C aligned": 0.10,
    "A in lines": 0.17,
    "B in lines": 0.43,
    "MB": 0.34,
    "NB": 0.57,
    "KB": 0.54,
    "TA": 0.36,
    "TB": 0.48,
    "SLICES": 0.58,
    "STAGES": 0.24,
    "BLOCKS": 0.30,
    "CLUSTER": 0.63,
    "CLUSTER_N": 0.63,  # not fitted
    "STORE": 0.47,
    "kernel": 0.90,
}

#: How the name of a survey's file ends, behind the slug of the GPU.
_ENDING = ".survey.npz"

#: Variances of the smooth and of the rough part of the corrections, and how many times shorter the
#: length scales of the rough part are.
SMOOTH, ROUGH, ROUGHER = 0.0070, 0.0005, 3.5

#: Measured points whose covariances are computed at a time: so many fit into a core's cache.
_AT_A_TIME = 4096

#: The column of a row that has the kernel's number, and how many features stand for it: one for
#: each number.
_KERNEL, _KERNELS = 5, 32


@dataclass(frozen=True)
class Survey:
    """The fit for one type on the GPU with the slug `where`: the features of the measured points,
    a column for each point, without those that are 0 for all (`used` is False for them); the
    weights of the points, the mean correction, the forms of kernels that were measured often
    enough with the deepest k for which they count, and of the products the least m, n and k with A
    as it is stored and with A transposed, the greatest extent and the most operations.
    """

    where: str
    features: np.ndarray
    used: np.ndarray
    weights: np.ndarray
    mean: float
    forms: dict[tuple[int, ...], float]
    least: tuple[tuple[int, ...], tuple[int, ...]]
    greatest: int
    flops: float
    dtype: str
    sms: int

    def corrections(self, problem: Problem, configs: Sequence[Config]) -> np.ndarray:
        """The predicted logarithms of measured / expected time. Kernels without any time in the
        survey are not told from each other.
        """
        rows = np.array([row(problem, config) for config in configs])
        here = features(rows, self.dtype, self.sms)[:, self.used].astype(self.features.dtype)
        found = np.full(len(here), self.mean)
        for first in range(0, len(self.weights), _AT_A_TIME):
            points = slice(first, first + _AT_A_TIME)
            found += covariance(here, self.features[:, points]) @ self.weights[points]
        return found

    def covers(self, problem: Problem) -> bool:
        """Whether products like this one were measured."""
        if problem.batch != 1 or problem.symmetric:
            return False
        extents = problem.m, problem.n, problem.k
        least = self.least[problem.trans_a]
        large = all(one <= e * _BEYOND for one, e in zip(least, extents, strict=True))
        within = max(extents) <= self.greatest * _BEYOND
        return large and within and problem.flops <= self.flops * _BEYOND


def covers(problem: Problem, device: Device) -> bool:
    """Whether products like this one were surveyed, on the device or a similar one."""
    return survey_of(problem, device) is not None


@lru_cache(maxsize=8192)
def quickest(kernel: Kernel, problem: Problem, device: Device) -> tuple[float, Config] | None:
    """The least expected time of the kernel's configurations, in microseconds, and its
    configuration: the first of `ranked`. None if there is none.
    """
    return next(iter(ranked(kernel, problem, device)), None)


def ranked(kernel: Kernel, problem: Problem, device: Device) -> list[tuple[float, Config]]:
    """The expected times of those of the kernel's configurations that its model expects to be the
    quickest, in microseconds, and the configurations, the quickest first. Forms with fewer than
    `_ENOUGH` times do not count, nor those of much shallower products only (`_DEEPER`). Empty where
    the survey does not cover the product, and if no configuration that counts may run.
    """
    survey = survey_of(problem, device)
    if survey is None or kernel.options is None or not kernel.runs_on(device):
        return []
    expected: dict[Config, float] = {}
    limit = math.inf
    for time, config in sorted(kernel.options(problem, device), key=lambda option: option[0]):
        if time > limit or len(expected) == _COMPARED:
            break
        counts = config not in expected and problem.k <= survey.forms.get(form(config), 0)
        if counts and not kernel.violations(config, problem, device):
            expected[config] = time
            limit = min(limit, _WITHIN * time)
    if not expected:
        return []
    corrections = np.exp(survey.corrections(problem, list(expected)))
    times = (corrections * list(expected.values())).tolist()
    return sorted(zip(times, expected, strict=True), key=lambda pair: pair[0])


def row(problem: Problem, config: Config) -> list[int]:
    """A product and a configuration, as a survey's .npz file stores them."""
    given = config.as_dict()
    product = problem.m, problem.n, problem.k, int(problem.trans_a), int(problem.trans_b)
    return [*product, config.kernel.number, *(given.get(name, 1) for name in PARAMETERS)]


def form(config: Config) -> tuple[int, ...]:
    """The form of a kernel: its number, and the parameters but for how C is stored and k split."""
    given = config.as_dict()
    return (config.kernel.number, *(given.get(name, 1) for name in _OF_FORM))


def features(rows: np.ndarray, dtype: str, sms: int) -> np.ndarray:
    """Scaled features of rows as `row` makes them: logarithms of the extents, of the waves of tiles
    on so many multiprocessors, of the parts of k and of their steps; how full the last wave and the
    tiles at the edges are; layout and alignment; the configuration; the kernel.
    """
    m, n, k, trans_a, trans_b, kernel, *given = rows.T
    c = dict(zip(PARAMETERS, given, strict=True))
    size = Problem(1, 1, 1, dtype).numpy_dtype.itemsize
    row_a, row_b = size * np.where(trans_a, m, k), size * np.where(trans_b, k, n)
    down, across = -(-m // c["MB"]), -(-n // c["NB"])
    waves = down * across * c["SPLIT"] / sms
    columns = {
        "m": np.log(m),
        "n": np.log(n),
        "k": np.log(k),
        "waves": np.log(waves),
        "last wave": np.minimum(np.ceil(waves / c["BLOCKS"]) * c["BLOCKS"] / waves, 3),
        "parts": np.log(c["SPLIT"]),
        "rows filled": m / (down * c["MB"]),
        "columns filled": n / (across * c["NB"]),
        "steps": np.log(-(-k // (c["KB"] * c["SPLIT"]))),
        "A transposed": trans_a,
        "B transposed": trans_b,
        "A aligned": _alignment(row_a),
        "B aligned": _alignment(row_b),
        "C aligned": _alignment(size * n),
        "A in lines": row_a % 128 == 0,
        "B in lines": row_b % 128 == 0,
        **{name: np.log2(c[name]) for name in ("MB", "NB", "KB", "TA", "TB", "SLICES")},
        **{name: c[name] for name in ("STAGES", "BLOCKS", "CLUSTER", "STORE")},
    }
    scaled = [SCALES[name] * np.asarray(column, float) for name, column in columns.items()]
    kernels = SCALES["kernel"] * np.eye(_KERNELS)[kernel]
    # New features come last, and are 0 where they say nothing: so sums of the others are the same.
    return np.column_stack([*scaled, kernels, SCALES["CLUSTER_N"] * np.log2(c["CLUSTER_N"])])


def _alignment(length: np.ndarray) -> np.ndarray:
    """Logarithm of the bytes, 16 at most, at whose multiples rows of this length start."""
    return np.log2(np.minimum(length & -length, 16))


def covariance(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Covariances of the corrections at each of some points, a row for each, and each of others, a
    column for each: the sum of a smooth and a rough squared exponential. Without BLAS, whose
    threads wait long for busy cores.
    """
    alike = (some == some[0]).all(axis=0)  # of configurations for one product more than half
    from_all = ((others[alike] - some[0, alike, None]) ** 2).sum(0)
    some, others = some[:, ~alike], others[~alike]
    apart = np.einsum("ij,jk->ik", some, others)
    apart *= -2
    apart += (some**2).sum(1)[:, None]
    apart += (others**2).sum(0) + from_all
    np.maximum(apart, 0, out=apart)
    rough = np.exp(apart * (-0.5 * ROUGHER**2))
    rough *= ROUGH
    apart *= -0.5
    np.exp(apart, out=apart)
    apart *= SMOOTH
    apart += rough
    return apart


def survey_of(problem: Problem, device: Device) -> Survey | None:
    """The first survey of `surveyed` that covers the product, in its type or in the type that takes
    the same time.
    """
    dtype = _SAME_TIMES_AS.get(problem.dtype, problem.dtype)
    found = (_load(slug, dtype) for slug in surveyed(device))
    return next((survey for survey in found if survey and survey.covers(problem)), None)


@lru_cache(maxsize=64)
def surveyed(device: Device) -> tuple[str, ...]:
    """The slugs of the GPUs whose surveys serve the device: its own, then those of the same compute
    capability with as many multiprocessors, by how similar their memory bandwidth is. On an H100
    the survey of an H200 chose configurations that took 1.016 to 1.025 of the least time, one of
    its own 1.018 to 1.020, the models alone 1.038 to 1.044.
    """
    if not device.is_gpu:
        return ()
    apart: dict[str, float] = {}
    for slug, (capability, sms, bandwidth) in _surveys().items():
        if slug == device.slug:
            apart[slug] = -1.0
        elif (capability, sms) == (tuple(device.capability), device.sms) and device.bandwidth > 0:
            apart[slug] = abs(math.log(bandwidth / device.bandwidth))
    return tuple(sorted(apart, key=apart.__getitem__))


@lru_cache(maxsize=1)
def _surveys() -> dict[str, tuple[tuple[int, ...], int, float]]:
    """The slugs of all GPUs that were surveyed: compute capability, multiprocessors, bytes of
    memory in a second.
    """
    found = {}
    for path in _folder().iterdir():
        slug, is_survey, _ = path.name.partition(_ENDING)
        if is_survey:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                capability = tuple(map(int, file["capability"]))
                found[slug] = capability, int(file["sms"]), float(file["bandwidth"])
    return found


def _folder() -> Traversable:
    from pymm.kernels.source import shipped_folder

    return shipped_folder("tuning_configs")


def _whole(rows: np.ndarray) -> np.ndarray:
    """Rows of a file with the columns of all parameters."""
    lacking = _KERNEL + 1 + len(PARAMETERS) - rows.shape[1]
    return np.pad(rows, ((0, 0), (0, lacking)), constant_values=1)


@lru_cache(maxsize=64)
def _load(device: str, dtype: str) -> Survey | None:
    """The survey of a device in one type, if it has that."""
    path = _folder().joinpath(device + _ENDING)
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
        if f"{dtype}_rows" not in file:
            return None
        rows, sms = _whole(file[f"{dtype}_rows"].astype(np.int64)), int(file["sms"])
        at = features(rows, dtype, sms).T.astype(np.float32, "C")  # quicker than in float64
        used = at.any(axis=1)
        columns = [_KERNEL, *(_KERNEL + 1 + PARAMETERS.index(name) for name in _OF_FORM)]
        known = _deepest(rows[:, columns], rows[:, :5])
        extents = rows[:, :3]
        most = np.iinfo(extents.dtype).max  # the least of a layout of A that was not measured
        least = [extents[rows[:, 3] == trans].min(axis=0, initial=most) for trans in (0, 1)]
        limits = (
            tuple(tuple(map(int, one)) for one in least),
            int(extents.max()),
            2.0 * extents.prod(axis=1).max(),
        )
        weights, mean = file[f"{dtype}_weights"], float(file[f"{dtype}_mean"])
        return Survey(device, at[used], used, weights, mean, known, *limits, dtype, sms)


def _deepest(forms: np.ndarray, products: np.ndarray) -> dict[tuple[int, ...], float]:
    """The forms that were measured often enough and the deepest k for which each counts, by the
    forms and the products (m, n, k and the layout) of all times.
    """
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for form, product in zip(forms.tolist(), products.tolist(), strict=True):
        found.setdefault(tuple(form), []).append(tuple(product))
    enough = {
        form: sorted(k for _, _, k, *_ in set(of))
        for form, of in found.items()
        if len(of) >= _ENOUGH
    }
    return {form: _DEEPER * depths[-min(_AS_DEEP, len(depths))] for form, depths in enough.items()}
