"""Samples of a /metrics text by name, bounded whatever the text is. Does not know what they mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from specserve.errors import FactError

MOST_SAMPLES = 50_000
"""Of those asked for: a server with 64 engines writes about 10,000."""
_MOST_CHARACTERS = 8 << 20
_LONGEST_LINE, _MOST_LABELS = 1024, 32
_MOST_COUNT = 2.0**63


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float

    def at_least_zero(self) -> float:
        """The value of a counter, a bucket, or a gauge that counts. Raises FactError where it can be none."""
        if not 0 <= self.value < _MOST_COUNT:  # false for NaN
            raise FactError(f"the metrics cannot be right: `{self.name}` is {self.value:g}")
        return self.value


def samples(text: str, *, names: Collection[str]) -> Iterator[Sample]:
    """The samples of these names. All other lines are passed over unread.

    Raises FactError where such a line is no sample, or where there are more of them than any server has.
    """
    from prometheus_client.parser import text_fd_to_metric_families

    lines: Any = _lines(text, frozenset(names))  # declared as a file, and only iterated over
    try:
        # Without their types, each line is a family of its own to the parser, which keeps none of them.
        for found, family in enumerate(text_fd_to_metric_families(lines)):
            if found == MOST_SAMPLES:
                raise FactError(f"the metrics hold more than {MOST_SAMPLES:,} samples of vLLM")
            for sample in family.samples:
                yield Sample(sample.name, sample.labels, float(sample.value))
    except (ValueError, LookupError, OverflowError) as error:
        raise FactError(f"the metrics are not Prometheus text: {error}") from error


def _lines(text: str, names: frozenset[str]) -> Iterator[str]:
    """The lines of these names, found by one expression: a text of a million others takes no time of ours."""
    characters = 0
    for found in _beginning_with(names).finditer(text):
        length = found.end() - found.start()
        characters += length
        if length > _LONGEST_LINE or text.count('="', found.start(), found.end()) > _MOST_LABELS:
            raise FactError(f"the metrics hold a line of {length:,} characters, such as vLLM never writes")
        if characters > _MOST_CHARACTERS:
            raise FactError(f"the metrics hold more than {_MOST_CHARACTERS >> 20} MiB of vLLM")
        yield found[0]


@lru_cache(maxsize=4)
def _beginning_with(names: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"^(?:{'|'.join(map(re.escape, sorted(names)))})(?=[{{ \t])[^\n]*", re.M)
