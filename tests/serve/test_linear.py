"""No text of a server or of its log can make a regular expression slow: by the expression, not by a clock."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from specserve import errors
from specserve.metrics import prometheus
from specserve.profile import secrets
from specserve.report import console, findings, servers
from specserve.serve import causes, events, logs
from specserve.serve.causes import find_cause, stages, table
from specserve.serve.detached import observe
from specserve.serve.logs import parse

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from linear import problems


def module_patterns(module: ModuleType) -> Iterator[tuple[str, re.Pattern[str]]]:
    def within(value: object) -> Iterator[re.Pattern[str]]:
        if isinstance(value, re.Pattern):
            yield value
        elif isinstance(value, tuple):
            for each in value:
                yield from within(each)

    for name, value in vars(module).items():
        for number, pattern in enumerate(within(value)):
            yield f"{module.__name__}.{name}[{number}]", pattern


MODULES = (causes, errors, events, logs, observe, prometheus, secrets, servers, console, findings)
PATTERNS = [
    *((row.name, row.pattern) for row in table()),
    *((f"{row.name}, within", row.within) for row in table() if row.within is not None),
    *((stage.name, stage.within) for stage in stages()),
    *(each for module in MODULES for each in module_patterns(module)),
]


@pytest.mark.parametrize("pattern", [each for _, each in PATTERNS], ids=[name for name, _ in PATTERNS])
def test_a_pattern_over_the_text_of_others_takes_linear_time(pattern: re.Pattern[str]) -> None:
    assert problems(pattern) == []


@pytest.mark.parametrize(
    "slow",
    [
        r"[^\n:]*nvcc: (?:command )?not found",
        r"\S+ does not support LoRA yet",
        r"\w+ does not support multimodal inputs yet",
        r"Repo id must be in the form .*?: '[^']+'",
        r"\[Errno 98\].*already in use",
        r"^\s*File \"x\"",
        r"(?:\w+)*x",
        r"(?:\w{1,9})+x",
        r"^.*a.*b",
        r"a[^\n]{0,999}b[^\n]{0,999}c",
        r"(?:a|b\S+) x",
        r"eyJ[\w-]{10,}\.",
    ],
)
def test_what_can_be_slow_is_found(slow: str) -> None:
    assert problems(re.compile(slow, re.MULTILINE))


@pytest.mark.parametrize(
    "fast",
    [
        r"larger than \d+ GiB \(\d+\)",
        r"(?P<text>ncclInvalidUsage[^\n]*)",
        r"^(?:\w+\.)*ImportError: (?P<text>.*)$",
        r"://[^/\s:@]+:[^/\s@]+@",
        r"\S{1,200} does not support LoRA yet",
    ],
)
def test_what_is_fast_is_not_refused(fast: str) -> None:
    assert problems(re.compile(fast, re.MULTILINE)) == []


ENDS = [
    " nvcc",
    " does not support M-RoPE yet",
    " is not a local folder",
    " No adapter found for",
    " quantization is currently not supported",
    " contains custom code which",
    " does not appear to have a file named",
    " Too many open files",
]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("filler", ["x", "x ", "'", "= ", "(", "1"])
def test_a_long_line_that_ends_like_a_cause_does_not_hold_up_the_answer(end: str, filler: str) -> None:
    line = filler * (40_000 // len(filler)) + end
    cause = find_cause(parse(f"{line}\n" * 40 + "ValueError: the real one\n"), exit_code=1)
    assert (cause.message, cause.is_known) == ("ValueError: the real one", True)


def test_a_literal_that_fills_the_log_does_not_hold_up_the_answer() -> None:
    raw = "nvcc" * 500_000 + "\n" + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n" * 30_000
    assert find_cause(parse(raw), exit_code=1).name == "exception"


def test_the_beginning_and_the_end_of_a_long_line_are_read() -> None:
    begins = "ValueError: there is no such kernel " + "x" * 50_000
    assert find_cause(parse(begins), exit_code=1).message.startswith("ValueError: there is no such kernel xx")
    ends = "x" * 50_000 + " fatal error: cuda.h: No such file or directory"
    assert find_cause(parse(ends), exit_code=1).name == "python-headers"
    record = f'{{"levelname": "ERROR", "message": "{ends}"}}'
    assert find_cause(parse(record), exit_code=1).name == "python-headers"
    assert all(len(line.text) < 4200 for raw in (begins, ends, record) for line in parse(raw))
