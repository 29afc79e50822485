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


def test_a_70b_with_a_draft_at_32k_on_four_small_gpus_is_an_error_with_exit_code_1(check: Check) -> None:
    code, findings, memory = found(check, LARGE % 32768, "4xA100-40GB")
    assert (code, memory["verdict"], findings["SD301"]["severity"]) == (1, "does_not_fit", "error")
    code, findings, memory = found(check, LARGE % 16384, "4xA100-40GB")
    assert (code, memory["verdict"], findings["SD302"]["severity"]) == (0, "tight", "warning")


@pytest.mark.parametrize(("text", "machine"), SHORT)
def test_a_little_more_than_the_optimistic_end_holds_is_an_error_and_as_much_is_not(
    check: Check, text: str, machine: str
) -> None:
    held = found(check, text % 4096, machine)[2]["kv_cache_tokens"]["high"]
    code, findings, memory = found(check, text % (held + 256), machine)
    assert (code, memory["verdict"], findings["SD301"]["severity"]) == (1, "does_not_fit", "error")
    code, findings, memory = found(check, text % (held - 256), machine)
    assert (code, memory["verdict"]) == (0, "tight") and "SD301" not in findings


@pytest.mark.parametrize(
    ("argument", "severity"),
    [
        ("cpu_offload_gb: 20", "warning"),
        ("hf_overrides: {num_hidden_layers: 2}", "warning"),
        ("num_gpu_blocks_override: 4096", "warning"),
        ("kv_transfer_config: {kv_connector: OffloadingConnector, kv_role: kv_both}", "error"),
        ("performance_mode: throughput", "error"),
    ],
)
def test_only_an_argument_that_may_make_room_softens_the_error_and_says_so(
    check: Check, argument: str, severity: str
) -> None:
    code, findings, _ = found(check, f"{SMALL % 131072}engine: {{{argument}}}\n", "1xL4-24GB")
    notes = " ".join(findings["SD301"]["notes"])
    assert findings["SD301"]["severity"] == severity
    assert (code == 1) is (severity == "error")
    assert f"not counted: `{argument.partition(':')[0]}`" in notes
    reason = "a warning and no error, because what is not counted may make room"
    assert (reason in notes) is (severity == "warning")


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
    order = [
        "target.max_model_len",
        "engine.max_num_seqs",
        "target.tensor_parallel_size",
        "target.quantization",
    ]
    seen = set()
    launches = [(LARGE % 32768, "4xA100-40GB"), (SMALL % 32768, "2xL4-24GB"), (ALONE % 40960, "4xA100-40GB"),
                (SMALL.replace("8B", "70B") % 8192, "8xH100-80GB"), (ALONE % 4096, "8xL4-24GB")]  # fmt: skip
    for text, machine in launches:
        _, findings, memory = found(check, text, machine)
        finding = findings.get("SD301") or findings["SD302"]
        turned = re.findall(
            r"`([\w.]+): (\w+)` would make it (a tight )?fit", finding["help"].replace("\n", " ")
        )
        places = [order.index(path) for path, _, _ in turned]
        assert places == sorted(places) and turned
        for path, value, is_tight in turned:
            seen.add(path)
            changed = found(check, text, machine, "--set", f"{path}={value}")[2]
            assert changed["verdict"] == ("tight" if is_tight else "fit"), (text, path, value)
        assert [fix["path"] for fix in memory["fixes"]] == [path for path, _, _ in turned]
    assert {"target.max_model_len", "target.quantization", "target.tensor_parallel_size"} <= seen


def test_a_shorter_context_is_the_first_remedy_of_the_70b(check: Check) -> None:
    _, findings, _ = found(check, LARGE % 32768, "4xA100-40GB")
    assert findings["SD301"]["help"].startswith("`target.max_model_len: ")


ONE = "target: {model: meta-llama/Llama-3.2-1B-Instruct, max_model_len: %d}\nengine: {%s}\n"


@pytest.mark.parametrize(
    ("text", "machine", "path"),
    [
        (LARGE % 32768, "4xA100-40GB", "target.model"),
        (SMALL % 32768, "1xL4-24GB", "target.model"),
        (ONE % (131072, "gpu_memory_utilization: 0.4"), "1xT4-16GB", "target.max_model_len"),
        (ONE % (2048, "kv_cache_memory_bytes: 32G"), "1xL4-24GB", "engine.kv_cache_memory_bytes"),
        ("""
target: {model: meta-llama/Llama-3.2-1B-Instruct, max_model_len: 8192}
alternatives:
  large: {method: draft_model, model: meta-llama/Llama-3.1-8B-Instruct, num_speculative_tokens: 3}
""", "1xT4-16GB", "alternatives.large.model"),
    ],
)  # fmt: skip
def test_the_finding_stands_at_the_largest_part(check: Check, text: str, machine: str, path: str) -> None:
    finding = found(check, text, machine)[1]["SD301"]
    assert finding["span"]["path"] == path
    assert ("(with `alternatives.large`)" in finding["message"]) is path.startswith("alternatives")
