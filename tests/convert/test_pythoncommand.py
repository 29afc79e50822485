"""Command lines that Python source hands to a process: lists, texts, f-strings. Nothing of them is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.convert.pythoncommand import command_lists, texts
from specserve.convert.reading import read
from specserve.errors import UsageError

MODAL = '''
MODEL = "org/m"
FAST = False
N_GPU = 2
def serve():
    """Runs vllm serve org/other."""
    cmd = ["vllm", "serve", MODEL, "--tensor-parallel-size", str(N_GPU),
           "--enforce-eager" if FAST else "--no-enforce-eager"]
    cmd += ["--max-model-len", "8192"]
    cmd.extend(["--port", f"80{N_GPU}0"])
    if os.environ.get("X"):
        cmd += ["--quantization", "fp8"]
    subprocess.Popen(cmd)
'''


def lists(text: str) -> list[list[str]]:
    return [[word.text for word in words] for words in command_lists(text, file="x.py")]


def test_a_list_is_read_with_what_its_block_adds_and_without_what_a_branch_adds() -> None:
    assert lists(MODAL) == [
        [
            "vllm", "serve", "org/m", "--tensor-parallel-size", "2", "--no-enforce-eager",
            "--max-model-len", "8192", "--port", "8020",
        ]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run(['python', '-m', 'vllm.entrypoints.openai.api_server', '--model', 'm'])", 1),
        ("run([sys.executable, '-m', 'vllm.entrypoints.openai.api_server', '--model', 'm'])", 1),
        ("A = ['--dtype', 'half']\nrun(['vllm', 'serve', 'm', *A])", 1),
        ("X = ['vllm', 'bench', 'serve']", 0),
        ("X = ['a', 'vllm']", 0),
    ],
)
def test_lists_that_start_an_engine_are_told_from_others(text: str, expected: int) -> None:
    assert len(lists(text)) == expected


def test_a_list_in_a_list_is_added_where_it_is_starred() -> None:
    assert lists("A = ['--dtype', 'half']\nrun(['vllm', 'serve', 'm', *A])") == [
        ["vllm", "serve", "m", "--dtype", "half"]
    ]


def test_a_text_for_a_shell_is_found_and_a_docstring_is_none() -> None:
    source = '"""vllm serve org/doc."""\nM = "org/m"\nos.system(f"vllm serve {M} --port {PORT}")'
    (found,) = texts(source, file="x.py")
    assert found.startswith("vllm serve org/m --port ")
    (start,) = read(source, file="x.py", folder=Path("nowhere"))
    assert start.settings["model"].node.value == "org/m"


def test_an_engine_made_by_a_call_goes_before_a_command_in_a_text() -> None:
    source = 'llm = LLM(model="org/a")\nprint("try vllm serve org/b")'
    (start,) = read(source, file="x.py", folder=Path("nowhere"))
    assert start.settings["model"].node.value == "org/a"


@given(st.text(alphabet="[]'\"(){}= \n\tfvlmser+*-_,:x1%!", max_size=80))
def test_any_source_is_read_or_is_a_clear_error(text: str) -> None:
    try:
        command_lists(text, file="x.py")
        texts(text, file="x.py")
    except UsageError:
        pass
