"""Python source as keywords of engines: literals and simple constants, by `ast` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.convert.pythonsource import calls
from specserve.convert.words import CLOSE, OPEN
from specserve.errors import UsageError
from specserve.profile.tree import Node


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    return [plain(child) for child in node.value] if isinstance(node.value, list) else node.value


def keywords(text: str) -> dict[str, Any]:
    (call,) = calls(text, file="x.py")
    return {name: plain(node) for name, node in call.keywords.items()}


def unknown(name: str) -> str:
    return f"{OPEN}{name}{CLOSE}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LLM('a/b', seed=1)", {"model": "a/b", "seed": 1}),
        ("vllm.LLM(model='a' 'b')", {"model": "ab"}),
        ("M = 'a/b'\nLLM(model=M)", {"model": "a/b"}),
        ("M: str = 'a/b'\nN = M\nLLM(model=N)", {"model": "a/b"}),
        ("LLM('a', max_model_len=8 * 1024, x=-1, y=1.5)", {"model": "a", "max_model_len": 8192, "x": -1, "y": 1.5}),
        ("LLM(model='org/' + 'm')", {"model": "org/m"}),
        ("LLM('m', x={'method': 'ngram', **{'a': 1}})", {"model": "m", "x": {"method": "ngram", "a": 1}}),
        ("LLM('m', x=dict(method='ngram'))", {"model": "m", "x": {"method": "ngram"}}),
        ("K = {'seed': 1}\nLLM('m', **K)", {"model": "m", "seed": 1}),
        ("LLM('m', compilation_config=CompilationConfig(level=3))", {"model": "m", "compilation_config": {"level": 3}}),
        ("p.add_argument('--tp', type=int, default=4)\nLLM('m', x=args.tp)", {"model": "m", "x": 4}),
        ("LLM(os.environ.get('M', 'a/b'))", {"model": "a/b"}),
        ("LLM('m', api_key=os.getenv('KEY'))", {"model": "m", "api_key": unknown("KEY")}),
        ("LLM(model=sys.argv[1])", {"model": unknown("an expression")}),
        ("LLM('m', dtype=torch.float16)", {"model": "m", "dtype": unknown("float16")}),
        ("def f():\n    return AsyncEngineArgs(model='m', seed=None)", {"model": "m", "seed": None}),
    ],
)  # fmt: skip
def test_source_becomes_the_keywords_of_its_engine(text: str, expected: dict[str, Any]) -> None:
    assert keywords(text) == expected


def test_a_name_has_the_value_that_stood_last_before_its_use() -> None:
    assert keywords("M = 'a'\nM = 'b'\nLLM(model=M)\nM = 'c'") == {"model": "b"}


def test_a_name_that_is_made_of_itself_ends() -> None:
    assert keywords("M = M\nLLM(model=M)") == {"model": unknown("M")}


def test_variables_set_before_the_engine_are_its_environment() -> None:
    text = "os.environ['VLLM_USE_V1'] = '0'\nLLM('m')\nos.environ['LATER'] = '1'"
    (call,) = calls(text, file="x.py")
    assert {name: node.value for name, node in call.env.items()} == {"VLLM_USE_V1": "0"}


def test_every_engine_of_a_file_is_found_in_its_order() -> None:
    found = calls("a = LLM('m')\nb = sgl.Engine(model_path='n')", file="x.py")
    assert [(call.engine, call.place.line) for call in found] == [("vllm", 1), ("sglang", 2)]


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert calls(f"open({str(mark)!r}, 'w')\nLLM(model=open({str(mark)!r}, 'w').name)", file="x.py")
    assert not mark.exists()


@pytest.mark.parametrize("text", ["LLM(", "LLM('a\0b')", "LLM(" + "(" * 5000, "x = " + "-" * 50_000 + "1"])
def test_what_is_no_python_is_a_clear_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"`x\.py` is not Python"):
        calls(text, file="x.py")


@given(
    st.lists(
        st.sampled_from(
            ["LLM(", "model=", "'m'", ",", ")", "{", "}", "[", "]", "x", "=", "\n", "1", "*", "**", ":"]
        )
    ).map("".join)
)
def test_any_text_becomes_calls_or_a_clear_error(text: str) -> None:
    try:
        calls(text, file="x.py")
    except UsageError as error:
        assert "is not Python" in error.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LLM('m', max_model_len=2**17)", {"model": "m", "max_model_len": 131072}),
        ("N = 'm'\nLLM(f'org/{N}', seed=7 // 2)", {"model": "org/m", "seed": 3}),
        ("LLM('m', seed=1 if False else 2)", {"model": "m", "seed": 2}),
        (
            "p.add_argument('--eager', action='store_true')\nLLM('m', enforce_eager=args.eager)",
            {"model": "m", "enforce_eager": False},
        ),
        ("LLM('m', seed=9**9**9)", {"model": "m", "seed": unknown("an expression")}),
        ("LLM('m', seed=1 // 0)", {"model": "m", "seed": unknown("an expression")}),
    ],
)
def test_what_needs_no_run_is_reckoned(text: str, expected: dict[str, Any]) -> None:
    assert keywords(text) == expected


def test_options_of_argparse_are_known_whatever_they_are_called() -> None:
    text = (
        "p.add_argument('--model', default='org/m')\np.add_argument('-tp', type=int, default=2)\n"
        "p.add_argument('-n', '--max-num-seqs', default=8)\na = p.parse_args()\n"
        "LLM(model=a.model, tensor_parallel_size=a.tp, max_num_seqs=a.max_num_seqs, seed=b.seed)"
    )
    expected = {"model": "org/m", "tensor_parallel_size": 2, "max_num_seqs": 8, "seed": unknown("seed")}
    assert keywords(text) == expected


def test_a_variable_of_the_environment_is_named() -> None:
    assert keywords("LLM(os.environ['MODEL'])") == {"model": unknown("MODEL")}
