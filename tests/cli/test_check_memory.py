"""What `check` says of memory: one verdict, exit code and remedy in the findings, the table and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run
from specserve.vllm import versions

Check = Callable[..., tuple[int, str]]
LARGE = """\
target: {model: meta-llama/Llama-3.1-70B-Instruct, tensor_parallel_size: 4, max_model_len: %d}
speculation: {method: draft_model, model: meta-llama/Llama-3.2-1B-Instruct, num_speculative_tokens: 5}
"""
SMALL = """\
target: {model: meta-llama/Llama-3.1-8B-Instruct, max_model_len: %d}
speculation: {method: draft_model, model: meta-llama/Llama-3.2-1B-Instruct, num_speculative_tokens: 3}
"""
ALONE = "target: {model: Qwen/Qwen3-32B, tensor_parallel_size: 2, max_model_len: %d}\n"
SHORT = ((LARGE, "4xA100-40GB"), (SMALL, "1xL4-24GB"), (LARGE.splitlines()[0], "4xA100-40GB"))


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Writes a profile and checks it: the exit code, and what it prints with the spaces of wrapped lines made one."""
    monkeypatch.setattr(versions, "installed", lambda: None)

    def run(text: str, machine: str, *options: str) -> tuple[int, str]:
        file = tmp_path / "p.yaml"
        file.write_text(text)
        code = _run(["check", str(file), "--offline", "--assume", machine, *options])
        return code, re.sub(r"\s+", " ", capsys.readouterr().out)

    return run


def found(check: Check, text: str, machine: str, *options: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The exit code, the findings by code, and the memory."""
    code, out = check(text, machine, "--format", "json", *options)
    document = json.loads(out)
    return code, {item["code"]: item for item in document["findings"]}, document["verdicts"][0]["memory"]


@pytest.mark.parametrize(("text", "machine"), SHORT)
def test_a_little_more_than_the_optimistic_end_holds_is_an_error_and_as_much_is_not(
    check: Check, text: str, machine: str
) -> None:
    held = found(check, text % 4096, machine)[2]["kv_cache_tokens"]["high"]
    code, findings, memory = found(check, text % (held + 256), machine)
    assert (code, memory["verdict"], findings["SD301"]["severity"]) == (1, "does_not_fit", "error")
    code, findings, memory = found(check, text % (held - 256), machine)
    assert (code, memory["verdict"]) == (0, "tight") and "SD301" not in findings


def test_strict_fails_for_warnings_and_complete_for_what_was_skipped(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    tight, fits = LARGE % 16384, SMALL % 4096
    for text, machine, codes in ((tight, "4xA100-40GB", (0, 1, 1)), (fits, "1xH100-80GB", (0, 0, 1))):
        each = ((), ("--strict",), ("--complete",))
        assert tuple(check(text, machine, *options)[0] for options in each) == codes
    assert found(check, fits, "1xH100-80GB", "--complete")[0] == 1
    assert check(LARGE % 32768, "4xA100-40GB", "--strict", "--complete")[0] == 1


def test_the_remedies_stand_in_the_order_in_which_a_person_tries_them_and_each_holds(check: Check) -> None:
    order = ["target.max_model_len", "engine.max_num_seqs", "target.tensor_parallel_size"]
    seen = set()
    launches = [(LARGE % 32768, "4xA100-40GB"), (SMALL % 32768, "2xL4-24GB"), (ALONE % 40960, "4xA100-40GB"),
                (SMALL.replace("8B", "70B") % 8192, "8xH100-80GB"), (ALONE % 4096, "8xL4-24GB")]  # fmt: skip
    for text, machine in launches:
        _, findings, memory = found(check, text, machine)
        finding = findings.get("SD301") or findings["SD302"]
        turned = re.findall(r"`([\w.]+): (\w+)`", finding["help"])
        places = [order.index(path) for path, _ in turned]
        assert places == sorted(places) and turned
        for path, value in turned:
            seen.add(path)
            changed = found(check, text, machine, "--set", f"{path}={value}")[2]
            better = ("fit", "tight") if memory["verdict"] == "does_not_fit" else ("fit",)
            assert changed["verdict"] in better, (text, path, value)
        assert {path: str(value) for path, value in memory["fixes"].items()} == dict(turned)
    assert {"target.max_model_len", "target.tensor_parallel_size"} <= seen
