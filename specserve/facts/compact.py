"""Tensors by name in few lines: the same tensor of every layer is written once. Knows no model.

`model.layers.{0-79}.mlp.up_proj.weight` stands for eighty names; in a name that has braces itself they are doubled.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from specserve.errors import FactError
from specserve.facts.model import BITS, Tensor

MAX_TENSORS = 1_000_000
_MAX_DIMENSION = 1 << 62
_MAX_NUMBERS = 8
"""Of a name that is made shorter; more would be no layer and no expert."""
_RANGES = re.compile(r"(?<!\{)\{([0-9,-]{1,100000})\}(?!\})")
_RANGE = re.compile(r"(0|[1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?")
_TENSOR = re.compile(r"([A-Z0-9_]{1,16}) ((?:[0-9]{1,19}(?:x[0-9]{1,19}){0,31})|scalar)")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
Index = tuple[int, ...]


def compact(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Patterns of names, sorted, each with its type and shape: `BF16 28672x8192`."""
    groups: dict[tuple[tuple[str | None, ...], Tensor], set[Index]] = defaultdict(set)
    written = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        numbers = tuple(int(part) for part in parts if _NUMBER.fullmatch(part))
        if "{" in name or "}" in name or len(numbers) > _MAX_NUMBERS:
            written[name.replace("{", "{{").replace("}", "}}")] = _tensor_text(tensor)
            continue
        template = tuple(None if _NUMBER.fullmatch(part) else part for part in parts)
        groups[template, tensor].add(numbers)
    for (template, tensor), indices in groups.items():
        for ranges in _boxes(indices):
            box = iter(ranges)
            name = ".".join(_braced(next(box)) if part is None else part for part in template)
            written[name] = _tensor_text(tensor)
    return dict(sorted(written.items()))


def _boxes(indices: set[Index]) -> Iterator[tuple[str, ...]]:
    """Products of ranges that together are these indices: first numbers with equal rests go together."""
    if not next(iter(indices)):
        yield ()
        return
    rests: dict[int, set[Index]] = defaultdict(set)
    for first, *rest in indices:
        rests[first].add(tuple(rest))
    firsts: dict[frozenset[Index], list[int]] = defaultdict(list)
    for number, its_rests in rests.items():
        firsts[frozenset(its_rests)].append(number)
    for same, numbers in firsts.items():
        for box in _boxes(set(same)):
            yield (_ranges(sorted(numbers)), *box)


def _ranges(numbers: Iterable[int]) -> str:
    """0-3,7 for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _braced(ranges: str) -> str:
    """One number stands as it is."""
    return ranges if ranges.isdigit() else f"{{{ranges}}}"


def _tensor_text(tensor: Tensor) -> str:
    return f"{tensor.dtype} {'x'.join(map(str, tensor.shape)) or 'scalar'}"


def expand(written: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors by name. Raises FactError for what `compact` does not write, and for more than a million."""
    tensors: dict[str, Tensor] = {}
    for pattern, text in written.items():
        tensor = _tensor(text)
        pieces = _RANGES.split(pattern)
        numbers = [_numbers(ranges) for ranges in pieces[1::2]]
        if len(tensors) + math.prod(map(len, numbers)) > MAX_TENSORS:
            raise FactError(f"it has more than {MAX_TENSORS} tensors")
        for chosen in itertools.product(*numbers):
            ends = (*map(str, chosen), "")
            name = "".join(itertools.chain.from_iterable(zip(pieces[::2], ends, strict=True)))
            tensors[name.replace("{{", "{").replace("}}", "}")] = tensor
    return tensors


def _numbers(ranges: str) -> list[int]:
    found: list[int] = []
    for piece in ranges.split(","):
        match = _RANGE.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or len(found) + last - first >= MAX_TENSORS:
            raise FactError(f"`{piece[:40]}` is no range of numbers")
        found += range(first, last + 1)
    return found


def _tensor(text: object) -> Tensor:
    match = _TENSOR.fullmatch(text) if isinstance(text, str) else None
    if not match or match[1] not in BITS:
        raise FactError("a tensor is written like `BF16 4096x4096`")
    shape = () if match[2] == "scalar" else tuple(int(size) for size in match[2].split("x"))
    if math.prod(shape) > _MAX_DIMENSION:
        raise FactError("a tensor has more elements than a disk has bytes")
    return Tensor(match[1], shape)
