"""Which of vLLM's exceptions count as a refusal."""

from __future__ import annotations

import linecache

import pytest

from specserve.engine.judging import failure
from specserve.engine.pretend import StandInCalled, _Finder


class ValidationError(ValueError):
    """As pydantic's, which holds the error of a validator."""

    def errors(self) -> list[dict[str, object]]:
        error = ValueError("max_num_seqs must be above 0")
        return [{"loc": ("max_num_seqs",), "msg": f"Value error, {error}", "ctx": {"error": error}}]


def raised(error: Exception, *, by: str, body: str = "raise error") -> Exception:
    """What a file of a library raises, by default this error."""
    file = f"/site-packages/{by}"
    linecache.cache[file] = (len(body), None, body.split("\n"), file)
    with pytest.raises(type(error)) as caught:
        exec(compile(body, file, "exec"), {"error": error})
    return caught.value


@pytest.mark.parametrize(
    "error", [ValueError("no such thing"), NotImplementedError("not yet"), AssertionError("K is too large")]
)
def test_what_vllm_raises_on_purpose_is_a_refusal(error: Exception) -> None:
    assert failure(raised(error, by="vllm/config/speculative.py"))["refused"] == str(error)


def test_what_another_library_raises_is_not_judged() -> None:
    answer = failure(raised(ValueError("no such rope type"), by="transformers/modeling_rope_utils.py"))
    assert answer["not_judged"] == "no such rope type"


@pytest.mark.parametrize(
    "error",
    [
        TypeError("'NoneType' is not callable"),
        AttributeError("x"),
        ImportError("x"),
        StandInCalled("f"),
        AssertionError(),
    ],
)
def test_what_happens_for_want_of_a_gpu_is_not_judged(error: Exception) -> None:
    answer = failure(error)
    assert "refused" not in answer and answer["not_judged"]


def test_a_validation_error_says_which_field_is_wrong() -> None:
    answer = failure(raised(ValidationError("2 validation errors for Config"), by="pydantic/main.py"))
    assert answer["refused"] == "max_num_seqs must be above 0" and answer["loc"] == ["max_num_seqs"]


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        ("raise ValueError('Failed to import Ray: No module named ray.')", False),
        ("raise ValueError('Please install Ray with `pip install ray`.')", False),
        ("try:\n  import no_such_ray\nexcept ImportError:\n  raise ValueError('no ray')", False),
        ("try:\n  import no_such_ray\nexcept ImportError as e:\n  raise ValueError('no ray') from e", False),
        ("raise ValueError('8 heads cannot be divided')", True),
    ],
)
def test_a_library_that_is_missing_here_is_no_refusal(body: str, is_refused: bool) -> None:
    error = raised(ValueError(), by="vllm/config/parallel.py", body=body)
    assert ("refused" in failure(error)) is is_refused


def test_a_module_that_only_a_gpu_can_import_is_a_stand_in_although_it_is_there() -> None:
    """DeepSeek V4 in 0.33 imports it: a wheel has it, and it looks for a compiled library."""
    spec = _Finder().find_spec("vllm.vllm_flash_attn.cute")
    assert spec is not None and spec.origin == "stand-in"
