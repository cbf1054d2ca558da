"""`einsum` and `tensordot` of two arrays: each is one batched product of matrices."""

from __future__ import annotations

import itertools
import math
import operator
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymm.api import matmul

#: Options of `matmul` that name axes or further operands; the subscripts say these.
_OTHERS = ("trans_a", "trans_b", "c", "beta", "bias")


def einsum(subscripts: str, a: Any, b: Any, /, out: Any = None, **options: Any) -> Any:
    """The sum of products that `subscripts` name, as `numpy.einsum` defines it, by one batched
    product of matrices: `pymm.einsum("bik,bkj->bij", a, b)` is `pymm.matmul(a, b)`.

    Each letter is an axis. One that both operands and the result have counts matrices of a batch;
    one that both operands have and the result has not is summed over (k); the others are rows (m)
    or columns (n) of the result. Without "->" the result has the letters that occur once, in
    alphabetical order. "..." stands for axes that broadcast, which the result has too.

    a, b: arrays as for `matmul`, with `transpose` or `permute`, and `reshape`. An operand is copied
        where the letters of its rows, or of k, are not neighbours in memory.
    out: array of the result's shape to write to, which is returned. The letters of a, and those of
        b, must be neighbours in its memory.
    options: alpha, dtype, casting, precision, out_dtype, activation, stream, kernel, config,
        device, transfer and device_memory of `matmul`.

    The result may be a view with its axes permuted; without axes it is a scalar for NumPy arrays.

    Raises what `matmul` does, `ValueError` for subscripts that are no valid text, do not fit the
    arrays or name axes of different lengths, and `NotImplementedError` for what no single product
    computes: a letter twice in one operand (a diagonal), or one that a single operand has and the
    result has not (a sum over that operand alone).
    """
    refused = [name for name in options if name in _OTHERS]
    if refused:
        raise TypeError(f"einsum has no {refused[0]}=: the subscripts name the axes of a and b")
    parsed = _parse(subscripts, len(_shape(a, "a")), len(_shape(b, "b")))
    lengths = _lengths(parsed, a, b)
    if parsed.first_of_result in parsed.right:  # columns first: the product of the transposes
        parsed, a, b = parsed.swapped(), b, a
    left, right = _operands(parsed, a, b, lengths)
    made = parsed.batch + parsed.rows + parsed.columns
    order = [made.index(label) for label in parsed.result]
    shape = [lengths[label] for label in made]
    if out is None:
        product = matmul(left, right, **options)
        result = _permuted(product.reshape(tuple(shape)), order)
        return result[()] if not shape and isinstance(result, np.ndarray) else result
    wanted = tuple(lengths[label] for label in parsed.result)
    if _shape(out, "out") != wanted:
        raise ValueError(f"out is {_shape(out, 'out')}; {subscripts!r} gives {wanted}")
    back = [parsed.result.index(label) for label in made]
    view = _permuted(out, back)
    if not _merges(view, [*[1] * len(parsed.batch), len(parsed.rows), len(parsed.columns)]):
        raise ValueError(
            f"out's axes {''.join(parsed.rows)!r}, or {''.join(parsed.columns)!r}, are not "
            f"neighbours in its memory: leave out= away, and assign the result"
        )
    stack = [lengths[label] for label in parsed.batch]
    stack += [math.prod(lengths[x] for x in group) for group in (parsed.rows, parsed.columns)]
    matmul(left, right, view.reshape(tuple(stack)), **options)
    return out


def tensordot(a: Any, b: Any, axes: int | Sequence[Any] = 2, **options: Any) -> Any:
    """The product of `a` and `b`, summed over pairs of axes, as `numpy.tensordot` defines it.

    axes: so many of the last axes of a and the first of b; or two axes, or two sequences of axes,
        of a and of b.
    options: as for `einsum`, and `out`.

    The result has the other axes of a, then those of b. Raises what `einsum` does, and
    `ValueError` for axes that are none, or not as many for a as for b.
    """
    ranks = len(_shape(a, "a")), len(_shape(b, "b"))
    of_a, of_b = _pairs(axes, ranks)
    letters = iter(string.ascii_letters)
    named_a = [next(letters) for _ in range(ranks[0])]
    named_b = [next(letters) for _ in range(ranks[1])]
    for i, j in zip(of_a, of_b, strict=True):
        named_b[j] = named_a[i]
    rest = [x for i, x in enumerate(named_a) if i not in of_a]
    rest += [x for j, x in enumerate(named_b) if j not in of_b]
    return einsum(f"{''.join(named_a)},{''.join(named_b)}->{''.join(rest)}", a, b, **options)


@dataclass(frozen=True)
class _Subscripts:
    """Labels of the axes of both operands and of the result. Those of "..." are capital letters
    from the end of the alphabet that are not used otherwise; each operand may lack the first ones.
    """

    left: list[str]
    right: list[str]
    result: list[str]
    broadcast: frozenset[str]

    @property
    def batch(self) -> list[str]:
        both = set(self.left) & set(self.right) | self.broadcast
        return [x for x in self.result if x in both]

    @property
    def summed(self) -> list[str]:
        return [x for x in self.left if x in self.right and x not in self.result]

    @property
    def rows(self) -> list[str]:
        return [x for x in self.left if x not in self.right and x not in self.broadcast]

    @property
    def columns(self) -> list[str]:
        return [x for x in self.right if x not in self.left and x not in self.broadcast]

    @property
    def first_of_result(self) -> str | None:
        return next((x for x in self.result if x not in self.batch), None)

    def swapped(self) -> _Subscripts:
        return _Subscripts(self.right, self.left, self.result, self.broadcast)


def _parse(subscripts: str, rank_a: int, rank_b: int) -> _Subscripts:
    if not isinstance(subscripts, str):
        raise TypeError(f"subscripts are text, as 'ij,jk->ik', not {type(subscripts).__name__}")
    text = subscripts.replace(" ", "")
    operands, arrow, result = text.partition("->")
    parts = operands.split(",")
    if len(parts) != 2:
        raise ValueError(f"{subscripts!r} names {len(parts)} operands; einsum multiplies two")
    dots = frozenset(string.ascii_uppercase) - set(text)
    spare = sorted(dots)
    left, more_a = _labels(parts[0], rank_a, spare, subscripts)
    right, more_b = _labels(parts[1], rank_b, spare, subscripts)
    broadcast = max(more_a, more_b, key=len)
    if not arrow:
        once = [x for x in sorted(left + right) if (left + right).count(x) == 1]
        ends = broadcast + [x for x in once if x not in broadcast]
    elif "..." in result:
        ends, _ = _labels(result, len(result) - 3 + len(broadcast), spare, subscripts)
    else:
        ends, _ = _labels(result, len(result), spare, subscripts)
        if broadcast:
            raise NotImplementedError(f"{subscripts!r} sums over '...': the result must have it")
    _check(subscripts, left, right, ends)
    return _Subscripts(left, right, ends, frozenset(broadcast))


def _labels(
    part: str, rank: int, spare: Sequence[str], subscripts: str
) -> tuple[list[str], list[str]]:
    """The labels of one operand, and those among them that stand for "..."."""
    before, dots, after = part.partition("...")
    named = before + after
    if not all(x in string.ascii_letters for x in named):
        raise ValueError(f"{subscripts!r}: a subscript is a letter, or '...' once in each operand")
    unnamed = rank - len(named)
    if unnamed < 0 or (unnamed and not dots):
        raise ValueError(f"{subscripts!r}: {part!r} names {len(named)} axes of an array of {rank}")
    if unnamed > len(spare):
        raise ValueError(f"{subscripts!r} has more axes than there are letters")
    chosen = list(spare[len(spare) - unnamed :])
    return [*before, *chosen, *after], chosen


def _check(
    subscripts: str, left: Sequence[str], right: Sequence[str], result: Sequence[str]
) -> None:
    for labels in (left, right):
        twice = [x for x in labels if labels.count(x) > 1]
        if twice:
            raise NotImplementedError(
                f"{subscripts!r}: {twice[0]!r} is twice in one operand; pass its diagonal, as "
                f"numpy.diagonal makes it"
            )
    for x in result:
        if x not in left and x not in right:
            raise ValueError(f"{subscripts!r}: no operand has {x!r}")
        if result.count(x) > 1:
            raise ValueError(f"{subscripts!r}: {x!r} is twice in the result")
    for x in [*left, *right]:
        if x not in result and not (x in left and x in right):
            raise NotImplementedError(
                f"{subscripts!r}: only one operand has {x!r}, and the result has not; sum that "
                f"operand over it first"
            )


def _lengths(parsed: _Subscripts, a: Any, b: Any) -> dict[str, int]:
    """The length of each axis; of "...", that of the result."""
    lengths: dict[str, int] = {}
    for labels, array in ((parsed.left, a), (parsed.right, b)):
        for label, length in zip(labels, _shape(array, ""), strict=True):
            known = lengths.setdefault(label, length)
            if known == length or (label in parsed.broadcast and 1 in (known, length)):
                lengths[label] = known if length == 1 else length
            else:
                name = "..." if label in parsed.broadcast else label
                raise ValueError(f"axis {name!r} has length {known} in a and {length} in b")
    return lengths


def _operands(parsed: _Subscripts, a: Any, b: Any, lengths: dict[str, int]) -> tuple[Any, Any]:
    """Both operands as stacks of matrices. The axes of k are in the order of a or in that of b,
    whichever has fewer elements copied.
    """
    found = []
    for summed in (parsed.summed, [x for x in parsed.right if x in parsed.summed]):
        left = _stack(parsed, a, parsed.left, (parsed.rows, summed), lengths)
        right = _stack(parsed, b, parsed.right, (summed, parsed.columns), lengths)
        copied = sum(math.prod(shape) for array, shape, merges in (left, right) if not merges)
        found.append((copied, left, right))
    _, left, right = min(found, key=lambda choice: choice[0])
    return left[0].reshape(left[1]), right[0].reshape(right[1])


def _stack(
    parsed: _Subscripts,
    array: Any,
    labels: list[str],
    groups: tuple[list[str], list[str]],
    lengths: dict[str, int],
) -> tuple[Any, tuple[int, ...], bool]:
    """One operand with its axes ordered as batch, rows, columns; the shape of its stack of
    matrices; and whether it has that shape without a copy.
    """
    own = [x for x in parsed.batch if x in labels]
    permuted = _permuted(array, [labels.index(x) for x in (*own, *groups[0], *groups[1])])
    shape = _shape(array, "")
    batch = [shape[labels.index(x)] if x in own else 1 for x in parsed.batch]
    matrix = [math.prod(lengths[x] for x in group) for group in groups]
    return permuted, (*batch, *matrix), _merges(permuted, [*[1] * len(own), *map(len, groups)])


def _merges(array: Any, groups: Sequence[int]) -> bool:
    """Whether the axes of an array, so many to a group, can each be one axis without a copy."""
    # PyTorch's strides are a method, and count elements.
    stride = array.strides if hasattr(array, "strides") else array.stride()
    axes = list(zip(_shape(array, ""), stride, strict=True))
    if any(length == 0 for length, _ in axes):
        return True
    for count in groups:
        group, axes = [axis for axis in axes[:count] if axis[0] > 1], axes[count:]
        for outer, (length, inner) in itertools.pairwise(group):
            if outer[1] != length * inner:
                return False
    return True


def _pairs(axes: Any, ranks: tuple[int, int]) -> tuple[list[int], list[int]]:
    """The axes of a and of b that `tensordot` sums over, each counted from 0."""
    if isinstance(axes, Iterable):
        of_a, of_b = (list(x) if isinstance(x, Iterable) else [x] for x in axes)
    else:
        count = operator.index(axes)
        if not 0 <= count <= min(ranks):
            raise ValueError(f"axes={count}; a has {ranks[0]} axes and b {ranks[1]}")
        of_a, of_b = list(range(ranks[0] - count, ranks[0])), list(range(count))
    if len(of_a) != len(of_b):
        raise ValueError(f"axes={axes!r} names {len(of_a)} axes of a and {len(of_b)} of b")
    for name, chosen, rank in (("a", of_a, ranks[0]), ("b", of_b, ranks[1])):
        for place, axis in enumerate(chosen):
            if not -rank <= operator.index(axis) < rank:
                raise ValueError(f"axes={axes!r}: {name} has no axis {axis}, it has {rank}")
            chosen[place] = axis % rank
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"axes={axes!r} names an axis of {name} twice")
    return of_a, of_b


def _shape(array: Any, name: str) -> tuple[int, ...]:
    if not (hasattr(array, "shape") and hasattr(array, "reshape")):
        kind = type(array).__name__
        raise TypeError(f"{name} is a {kind}: einsum takes arrays with shape and reshape")
    return tuple(array.shape)


def _permuted(array: Any, order: Sequence[int]) -> Any:
    """A view of an array with its axes in this order."""
    if list(order) == list(range(len(order))):
        return array
    permute = getattr(array, "permute", None)  # PyTorch's `transpose` swaps two axes
    return permute(*order) if permute else array.transpose(*order)
