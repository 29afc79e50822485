"""The script that reads SGLang's arguments from its source, on a few lines of such a source."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import update_sglang

FIELDS = """
class Model(msgspec.Struct):
    _NS_PATH = "model"
    shared = Derived(fn="x")
    model_path: A[str, Arg(help="Where.", aliases=["--model"])]
    context_length: A[Optional[int], Arg(help="h", type_parser=human_readable_int)] = None
    dtype: A[str, Arg(help="h", choices=DTYPES)] = "auto"
    hidden: A[bool, Arg(no_cli=True)] = False
    reasoning_parser: Optional[str] = None
"""
SERVER_ARGS = """
class ServerArgs:
    def add_cli_args(parser):
        parser.add_argument("--reasoning-parser", choices=["auto"] + names, default=None)
        parser.add_argument("--tool-call-parser", choices=["auto"] + names)
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    file = tmp_path / "sglang-9.8.7-cp311-cp311-linux.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("sglang/srt/arg_groups/fields/model.py", FIELDS)
        archive.writestr("sglang/srt/arg_groups/choices.py", 'DTYPES = ["auto", "half"]\n')
        archive.writestr("sglang/srt/function_call/parser_names.py", 'TOOL_CALL_PARSER_NAMES = ["qwen"]\n')
        archive.writestr(
            "sglang/srt/parser/reasoning_parser_names.py", 'REASONING_PARSER_NAMES = ["qwen3"]\n'
        )
        archive.writestr("sglang/srt/server_args.py", SERVER_ARGS)
    return file


def test_a_wheel_becomes_a_table_and_one_that_is_not_its_own_is_found(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "arguments.json"
    monkeypatch.setattr(update_sglang, "TABLE", table)
    assert update_sglang.main([str(wheel)]) == 0
    assert json.loads(table.read_text()) == {
        "version": "9.8.7",
        "arguments": {
            "context_length": {"kind": "int", "human_int": True},
            "dtype": {"kind": "str", "choices": ["auto", "half"]},
            "model_path": {"kind": "str", "aliases": ["--model"]},
            "reasoning_parser": {"kind": "str", "choices": ["auto", "qwen3"]},
            "tool_call_parser": {"kind": "str", "choices": ["auto", "qwen"]},
        },
    }
    assert update_sglang.main(["--check", str(wheel)]) == 0
    table.write_text(table.read_text().replace('"half"', '"float"'))
    capsys.readouterr()
    assert update_sglang.main(["--check", str(wheel)]) == 1
    assert capsys.readouterr().out == "changed: dtype\n"
