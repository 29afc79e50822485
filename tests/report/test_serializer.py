"""The one way to JSON: version first, nothing that JSON lacks, nothing that steers a terminal."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specserve.report.text import json_document


class _Word(StrEnum):
    PAYS = "PAYS"


@dataclass(frozen=True)
class _Inner:
    figure: float
    word: _Word = _Word.PAYS


@dataclass(frozen=True)
class _Outer:
    inner: _Inner
    pairs: tuple[tuple[int, float], ...]
    by_load: dict[int, _Inner | None]
    path: Path


OUTER = _Outer(_Inner(math.inf), ((1, 2.123456789),), {4: _Inner(0.5), 8: None}, Path("/x"))


def test_a_document_begins_with_its_version_and_holds_nested_data_classes() -> None:
    text = json_document(OUTER)
    assert text.startswith('{\n  "version": 1,\n')
    assert json.loads(text) == {
        "version": 1,
        "inner": {"figure": None, "word": "PAYS"},
        "pairs": [[1, 2.123456789]],
        "by_load": {"4": {"figure": 0.5, "word": "PAYS"}, "8": None},
        "path": "/x",
    }


def test_text_from_elsewhere_steers_no_terminal_and_means_the_same() -> None:
    text = json_document({"name": "\x1b[2J ü"})
    assert "\x1b" not in text and "ü" in text
    assert json.loads(text)["name"] == "\x1b[2J ü"
