"""Which exception of a log is the root, however it is wrapped, and what vLLM was doing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.serve.causes import find_cause
from specserve.serve.logs import parse
from specserve.serve.tracebacks import Raised, root_exception

TRACEBACK = "Traceback (most recent call last):\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def frame(path: str, function: str, statement: str = "run()") -> str:
    return f'  File "/v/{path}", line 7, in {function}\n    {statement}\n'


def root(raw: str) -> Raised:
    found = root_exception([line for line in parse(raw) if line.is_fault])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("KeyError: 'inner'\n" + CAUSE + TRACEBACK + "RuntimeError: outer\n", "KeyError: 'inner'"),
        # A wrapper that says nothing yields to the next exception that does.
        (
            TRACEBACK + frame("a.py", "f", "raise Exception") + "Exception\n" + CAUSE + "ValueError: said\n",
            "ValueError: said",
        ),
        ("ValueError: said\n" + CAUSE + "Exception:\n" + CAUSE + "Exception\n", "ValueError: said"),
        ("KeyError: 'x'\n" + CONTEXT + TRACEBACK + "EngineDeadError: see above\n", "KeyError: 'x'"),
        ("OSError: no network\n" + CONTEXT + TRACEBACK + "ValueError: no model\n", "OSError: no network"),
        # The head of a message of several lines yields to the line that says what is wrong.
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, no such thing [type=value_error, input_value=ArgsKwargs(())]\n"
            "    For further information visit https://errors.pydantic.dev\n",
            "pydantic_core._pydantic_core.ValidationError: no such thing",
        ),
        ("RuntimeError: the build failed:\ng++ said\nfatal: no header\n", "RuntimeError: fatal: no header"),
        # What one process says of another's failure is no cause, and is used only if nothing else is there.
        (
            "(Worker pid=1) ValueError: the cause\n(EngineCore pid=2) RuntimeError: Worker failed with error "
            "'the cause', please check the stack trace above for the root cause\n",
            "ValueError: the cause",
        ),
        (
            TRACEBACK + frame("t.py", "f") + "triton.runtime.errors.OutOfResources: out of resource\n",
            "triton.runtime.errors.OutOfResources: out of resource",
        ),
        ("ValueError: an old one\n" + TRACEBACK + "TypeError: the last\n", "TypeError: the last"),
    ],
)
def test_the_root_is_the_innermost_exception_with_a_message(raw: str, text: str) -> None:
    assert root(raw).text == text


PIECES = [
    TRACEBACK,
    CAUSE,
    CONTEXT,
    frame("vllm/a.py", "f"),
    "Exception ignored in: x\n",
    "    x = y\n",
    "^^\n",
    "\n",
]
ENDS = ["ValueError: x\n", "KeyError: 'k'\n", "Exception\n", "Exception:\n", "AssertionError\n", "EOFError\n"]


@given(st.lists(st.sampled_from(PIECES + ENDS) | st.text(max_size=20)))
def test_no_log_is_too_broken_to_be_read(pieces: list[str]) -> None:
    found = root_exception(parse("".join(pieces)))
    assert found is None or found.text


def test_workers_that_write_between_each_others_lines_are_read_apart() -> None:
    trace = (TRACEBACK + frame("vllm/x.py", "f") + "KeyError: 'a'\n" + CAUSE + "OSError: b\n").splitlines()
    mixed = [
        f"(Worker_TP{rank} pid={rank}) ERROR 11-21 01:02:03 [x.py:1] {line}"
        for line in trace
        for rank in (0, 1)
    ]
    assert root("\n".join(mixed)).text == "KeyError: 'a'"


def test_the_place_is_the_innermost_file_of_vllm() -> None:
    frames = (
        frame("vllm/v1/engine/core.py", "run")
        + frame("vllm/config/model.py", "get")
        + frame("torch/x.py", "f")
    )
    assert root(TRACEBACK + frames + "ValueError: x\n").place == "vllm/config/model.py:7, in get"
    assert root(TRACEBACK + frame("torch/x.py", "f") + "ValueError: x\n").place is None


def test_an_exception_that_no_row_knows_is_told_with_its_place() -> None:
    raw = TRACEBACK + frame("vllm/model_executor/models/new.py", "load_weights") + "TypeError: never seen\n"
    cause = find_cause(parse(raw), exit_code=1)
    place = "(vllm/model_executor/models/new.py:7, in load_weights)"
    assert (cause.name, cause.message) == ("exception", f"TypeError: never seen {place}")
