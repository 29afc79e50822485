"""No text of a server or of its log holds up the answer: what is read of a line is bounded."""

from __future__ import annotations

import pytest

from specserve.serve.causes import find_cause
from specserve.serve.logs import parse

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
    assert all(len(line.text) < 4200 for raw in (begins, ends) for line in parse(raw))
