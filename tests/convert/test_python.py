"""Python source: the engines it makes; nothing of it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specserve.convert.convert import converted
from specserve.convert.python import launches
from specserve.convert.reading import read
from specserve.convert.words import OPEN, plain, unknown
from specserve.errors import UsageError


def keywords(text: str) -> dict[str, Any]:
    (call,) = launches(text, file="x.py")
    return {name: plain(setting.node) for name, setting in call.settings.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LLM('a/b', seed=1)", {"model": "a/b", "seed": 1}),
        ("vllm.LLM(model='a' 'b')", {"model": "ab"}),
        ("M = 'a/b'\nLLM(model=M)", {"model": "a/b"}),
        ("M: str = 'a/b'\nN = M\nLLM(model=N)", {"model": "a/b"}),
        ("LLM('a', x=-1, y=1.5)", {"model": "a", "x": -1, "y": 1.5}),
        ("N = 'm'\nLLM(f'org/{N}')", {"model": "org/m"}),
        ("LLM('m', x={'method': 'ngram', **{'a': 1}})", {"model": "m", "x": {"method": "ngram", "a": 1}}),
        ("LLM('m', x=dict(method='ngram'))", {"model": "m", "x": {"method": "ngram"}}),
        ("K = {'seed': 1}\nLLM('m', **K)", {"model": "m", "seed": 1}),
        ("LLM('m', compilation_config=CompilationConfig(level=3))", {"model": "m", "compilation_config": {"level": 3}}),
        ("p.add_argument('--tp', type=int, default=4)\nLLM('m', x=args.tp)", {"model": "m", "x": 4}),
        ("p.add_argument('--tp', default=4)\nLLM('m', x=mine.tp)", {"model": "m", "x": unknown("tp")}),
        ("def f(tp=2):\n    LLM('m', x=tp)\ndef g(tp=3):\n    pass", {"model": "m", "x": 2}),
        ("LLM('org/' + 'm')", {"model": "org/m"}),
        ("LLM(os.environ.get('M', 'a/b'))", {"model": "a/b"}),
        ("LLM(options.get('M', 'a/b'))", {"model": unknown("get(…)")}),
        ("LLM('m', api_key=os.getenv('KEY'))", {"model": "m", "api_key": unknown("KEY")}),
        ("M = M\nLLM(model=M)", {"model": unknown("M")}),
        ("LLM('m', x=json.dumps({'a': [1, X]}))", {"model": "m", "x": f'{{"a": [1, "{unknown("X")}"]}}'}),
        ("LLM(model=sys.argv[1])", {"model": unknown("an expression")}),
        ("LLM('m', dtype=torch.float16)", {"model": "m", "dtype": unknown("float16")}),
        ("def f():\n    return AsyncEngineArgs(model='m', seed=None)", {"model": "m", "seed": None}),
    ],
)  # fmt: skip
def test_source_becomes_the_keywords_of_its_engine(text: str, expected: dict[str, Any]) -> None:
    assert keywords(text) == expected


def test_variables_set_before_the_engine_are_its_environment() -> None:
    text = "os.environ['A'] = '0'\nenviron.setdefault('B', '1')\nmodal.Image.env(dict(os.environ, C='2'))\nLLM('m')\n"
    (call,) = launches(text + "os.environ['LATER'] = '1'", file="x.py")
    assert {name: word.text for name, word in call.env.items()} == {"A": "0", "B": "1", "C": "2"}


@pytest.mark.parametrize("env", ["dict(os.environ, A='0')", "{**os.environ, 'A': '0'}"])
def test_the_environment_given_to_the_only_command_is_its_own(env: str) -> None:
    for text in (f"run(['vllm', 'serve', 'm'], env={env})", f"c = ['vllm', 'serve', 'm']\nrun(c, env={env})"):
        (call,) = launches(text, file="x.py")
        assert {name: word.text for name, word in call.env.items()} == {"A": "0"}


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert launches(f"open({str(mark)!r}, 'w')\nLLM(model=open({str(mark)!r}, 'w').name)", file="x.py")
    assert not mark.exists()


@pytest.mark.parametrize("text", ["LLM(", "LLM('a\0b')", "LLM(" + "(" * 5000, "x = " + "-" * 50_000 + "1"])
def test_what_is_no_python_is_a_clear_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"`x\.py` is not Python"):
        launches(text, file="x.py")


@pytest.mark.parametrize(
    "text",
    [
        "p.add_argument('-m', '--model', required=True)\na = p.parse_args()\nLLM(a.model)",
        "if x():\n    M = 'org/a'\nelse:\n    M = 'org/b'\nLLM(M)",
        "for M in ['org/a', 'org/b']:\n    LLM(M)",
        "M = 'a'\nM += 'b'\nLLM(M)",
        "M = 'a'\nM = 'b'\nLLM(M)",
        "K = {'model': 'a'}\nK['model'] = 'b'\nLLM(K)",
        "K = {'a': {}}\nK['a']['b'] = 1\nLLM(K)",
        "LLM('org/a' if x() else 'org/b')",
    ],
)
def test_what_only_a_run_decides_is_left_open(text: str) -> None:
    assert str(keywords(text)["model"]).startswith(OPEN)


def test_defaults_are_taken_with_a_note() -> None:
    text = "p.add_argument('--tp', default=2)\nLLM('org/m', tensor_parallel_size=p.parse_args().tp)"
    (start,) = read(text, file="x.py", folder=Path("nowhere"))
    assert [note.text for note in start.notes] == [
        "the profile has the program's defaults of `tp`, which a run may change"
    ]
    assert not converted(start, origin="x.py").unresolved


COMMAND = """
import subprocess
p.add_argument("--eager", action="store_true")
args = p.parse_args()

def serve(model="org/m", port=8001):
    cmd = ["vllm", "serve", model, *EXTRA, "--port", str(port)]
    if args.eager:
        cmd.append("--enforce-eager")
    if os.environ.get("LEN"):
        cmd += ["--max-model-len", os.environ["LEN"]]
    cmd.extend(["--seed", "1"])
    subprocess.Popen(cmd, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
EXTRA = ["--max-num-seqs", "8"]
"""


def test_a_list_that_a_program_starts_is_read_with_what_is_added_to_it() -> None:
    (start,) = read(COMMAND, file="x.py", folder=Path("nowhere"))
    values = {name: setting.node.value for name, setting in start.settings.items()}
    assert values == {"model": "org/m", "port": 8001, "max_num_seqs": 8, "seed": 1}
    (finding,) = start.unresolved
    assert finding.message == "the source changes the list `cmd` in other lines, which are not followed"
    assert start.name == "serve"


def test_keywords_that_the_source_does_not_say_are_refused() -> None:
    (start,) = read("LLM('org/m', **options())", file="x.py", folder=Path("nowhere"))
    assert [item.message for item in converted(start, origin="x.py").unresolved] == [
        "the source does not say `engine.$(…)`: it reads `$(…)`"
    ]
