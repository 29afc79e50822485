"""What scripts/gpu_report.py makes of logs, commands' JSON and a whole report: points, tables, page, shared copy."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
import memory_points
from bench_result import example
from gpu_steps import BUDGET_026, BUDGET_033, H200, LOG_026, MACHINE, ROOT, SMALL, steps_of
from gpureport import bootlog, contributed, judge, memory, page, servers, sharing, speed, store

from specserve.errors import FactError
from specserve.report.bench import rendered

# what vLLM logs


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        (BUDGET_026, {"activation_gib": 1.89, "non_torch_gib": 0.25}),
        (BUDGET_033, {"activation_gib": 1.89, "consumed_gib": 15.31}),
    ],
)
def test_memory_is_read_from_the_log(line: str, usage: dict[str, float]) -> None:
    found = bootlog.logged(LOG_026 + line)
    assert found == usage | {
        "weights_gib": 14.99, "kv_gib": 98.21, "graphs_estimated_gib": 0.84, "graphs_gib": 0.91, "kv_tokens": 804544.0,
        "max_concurrency": 98.21, "free_gib": 139.12, "total_gib": 139.72,
    }  # fmt: skip


@pytest.mark.vllm
@pytest.mark.installed
def test_the_installed_vllm_still_logs_what_is_read() -> None:
    found = importlib.util.find_spec("vllm")
    assert found and found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0])
    texts = {
        "v1/worker/gpu_model_runner.py": (
            "Model loading took %s GiB", "Estimated CUDA graph memory: %.2f GiB",
            "Graph capturing finished in %.0f secs, took",
        ),
        "v1/worker/gpu/model_runner.py": ("Model loading took %s GiB", "Graph capturing finished in %.0f secs, took"),
        "v1/worker/gpu_worker.py": (
            "Available KV cache memory: %s GiB", "Using V2 Model Runner", "GiB for consumed memory",
            "for peak activation", "Free memory on device ",
        ),
        "v1/core/kv_cache_utils.py": (
            "KV cache size: %s tokens", "Maximum concurrency for %s tokens per request: %.2fx",
        ),
        "v1/engine/core.py": ("init engine (",),
        "config/speculative.py": ("Overriding draft model max model len",),
    }  # fmt: skip
    for name, parts in texts.items():
        source = (folder / name).read_text(encoding="utf-8")
        assert [part for part in parts if part not in source] == [], name


def test_how_a_boot_ended() -> None:
    assert bootlog.outcome("", is_ready=True) == "serves"
    assert (
        bootlog.outcome("init engine (profile, create kv cache, warmup model) took 9 s", is_ready=False)
        == "serves"
    )
    assert bootlog.outcome("torch.OutOfMemoryError: CUDA out of memory", is_ready=False) == "oom"
    assert (
        bootlog.outcome("ValueError: No available memory for the cache blocks", is_ready=False)
        == "does_not_fit"
    )
    assert bootlog.outcome("RuntimeError: no kernel", is_ready=False) == "fails"


def test_a_boot_is_a_memory_point_that_the_scores_can_read(tmp_path: Path) -> None:
    """scripts/memory_points.py takes the line as it takes those of public logs."""
    step = next(step for step in steps_of(H200, tmp_path) if step.name == "llama8b-256")
    start = servers.Start(True, 40.0, "http://127.0.0.1:1/v1", None, None, LOG_026 + BUDGET_033, {})
    predicted = {"kv_gib": {"low": 97.0, "high": 99.0}, "kv_tokens": {"low": 1, "high": 2}}
    found = memory.outcome(step, H200, start=start, predicted=predicted, findings=[])
    assert found.line == "served with a KV cache of 98.21 GiB; predicted 97 to 99: inside"
    point = found.result["point"] | {"vllm_version": "0.26.0"}
    assert point["predicted"] == predicted
    known = json.loads((ROOT / "tests/memory/vram_points.jsonl").read_text().splitlines()[0])
    assert set(known) - {"reported_kv_blocks", "block_size", "gpu_mem_free_gib"} <= set(point)
    row = memory_points.row(point)
    assert not isinstance(row, str), row
    assert memory_points.logged_kv(row) == pytest.approx(98.21 * 2**30, rel=0.001)
    assert (point["regime"], point["outcome"], point["config"]["layers"]) == ("v2", "serves", 32)


def test_a_judgement_agrees_if_check_errs_on_what_vllm_refuses() -> None:
    refused = servers.Start(False, 9.0, None, "ValueError: no", None, "", {})
    served = servers.Start(True, 9.0, "http://h", None, None, "WARNING max_model_len of the draft is 256", {})
    error: dict[str, Any] = {"findings": [{"severity": "error", "code": "SD1"}]}
    nothing: dict[str, Any] = {"findings": []}
    case = {"name": "a", "about": "b", "vllm": "refuses", "changed": "max_model_len"}
    assert judge.judged(case, error, refused)["agrees"]
    assert not judge.judged(case, nothing, refused)["agrees"]
    assert not judge.judged(case, error, served)["agrees"]
    assert judge.judged(case, nothing, served)["vllm"] == "changes"


def test_a_benchmark_becomes_rows_by_k_and_concurrency() -> None:
    found = speed.bench_outcome(json.loads(rendered(example(), form="json")))
    assert found.result["rows"]
    assert {"k", "concurrency", "speedup", "verdict", "acceptance_rate"} <= set(found.result["rows"][0])
    assert "x at concurrency" in found.line


# what is given away, and the page


def a_whole_report(tmp_path: Path) -> dict[str, Any]:
    """A report with a step of every kind."""
    root = tmp_path / "r"
    steps = steps_of(H200, root)
    start = servers.Start(True, 40.0, "http://127.0.0.1:1/v1", None, None, LOG_026 + BUDGET_033, {})
    predicted = {
        "verdict": "fit", "basis": "formula", "weights_gib": 14.96, "activation_gib": {"low": 1.0, "high": 2.0},
        "other_gib": {"low": 0.1, "high": 0.4}, "kv_gib": {"low": 97.0, "high": 99.0},
        "kv_tokens": {"low": 790_000, "high": 810_000},
    }  # fmt: skip
    boot = next(step for step in steps if step.name == "llama8b-256")
    case = {"name": "draft", "about": "A <draft>.", "vllm": "refuses"}
    refused = servers.Start(False, 9.0, None, "ValueError: /home/alice/models is 10.1.2.3", None, "", {})
    row = {
        "k": 4, "concurrency": 1, "speedup": {"value": 2.1, "low": 1.9, "high": 2.3}, "verdict": "PAYS",
        "tokens_per_s": 300.0, "baseline_tokens_per_s": 140.0, "acceptance_rate": 0.65, "mean_length": 3.6,
    }  # fmt: skip
    results = {
        "memory-llama8b-256": memory.outcome(
            boot, H200, start=start, predicted=predicted, findings=[]
        ).result,
        "judge-1": {"cases": [judge.judged(case, {"findings": []}, refused)]},
        "speed-bench": {
            "rows": [row],
            "stops_paying": ["at concurrency 64"],
            "is_complete": True,
            "settings": {},
        },
        "serve-pair": {"is_ready": False, "runner": "v1", "cause": "it died in /tmp/x", "findings": []},
    }
    records = []
    for step in steps:
        record = store.not_run(step, "out of time", estimate_s=3.0)
        if step.key in results:
            record |= {"status": "done", "line": "ok", "took_s": 4.0, "result": results[step.key]}
            record |= store.asked(step)
        records.append(record)
    records[-1] |= {"status": "failed", "cause": "exit code 2", "log_tail": "Traceback in /home/alice/x.py"}
    store.claim(root, {})
    return store.assemble(root, machine=MACHINE, records=records, minutes=8)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for item in value.values() for text in strings(item))
    elif isinstance(value, list):
        yield from (text for item in value for text in strings(item))
    elif isinstance(value, str):
        yield value


def test_a_shared_report_names_no_path_address_or_user(tmp_path: Path) -> None:
    report = a_whole_report(tmp_path)
    found = sharing.shared(report, private=["alice", "gpu"])
    assert found["kind"] == "gpu-report"
    text = json.dumps(found)
    for private in ("alice", "/home", "10.1.2.3", "127.0.0.1", str(tmp_path), "Traceback"):
        assert private not in text
    assert sharing.shared(found) == found
    assert "../models/llama8b" in text
    assert "{profiles}/memory-llama8b-256.yaml" in text
    assert found["points"] == report["points"]


def test_a_shared_report_becomes_a_row_and_another_file_is_refused(tmp_path: Path) -> None:
    report = sharing.shared(a_whole_report(tmp_path), private=["alice"])
    folder = tmp_path / "reports"
    assert contributed.reports(folder)[1:] == ["No report of a GPU yet."]
    store.write_json(folder / "h200.json", report)
    head, rows = contributed.reports(folder)
    assert head.startswith("## Reports of whole machines")
    assert "| NVIDIA H200 | 0\\.26.0 |" in rows
    assert "| \\- | 1 of 1 | 0 of 1 | 2\\.10x | [h200](reports/h200.json) |" in rows
    store.write_json(folder / "h200.json", report | {"log_tail": "x"})
    with pytest.raises(FactError, match="holds more than a shared report has"):
        contributed.reports(folder)
    (folder / "h200.json").write_text("[]")
    with pytest.raises(FactError, match="is no report of"):
        contributed.reports(folder)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("at /usr/lib/x.py:3", "at <path>:3"),
        ("~/models/a", "<path>"),
        ("http://u:p@host:80/v1 said no", "<url> said no"),
        ("host 192.168.0.4:8000", "host <address>"),
        ("12.5 tokens/s, 3/4 of 0.32.0", "12.5 tokens/s, 3/4 of 0.32.0"),
        ("user bob's", "user <private>'s"),
        ("../models/wide", "../models/wide"),
        ("../../home/x", "<path>"),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
    ],
)
def test_private_words_are_blanked(text: str, kept: str) -> None:
    assert sharing.text(text, ["bob"]) == kept


def test_the_page_shows_every_part_and_escapes_what_it_shows(tmp_path: Path) -> None:
    found = page.html(a_whole_report(tmp_path))
    assert found.count("<svg") >= 2
    assert "A &lt;draft&gt;." in found
    assert "<draft>" not in found
    for text in (
        "2.10x (1.90-2.30)",
        "1 of 1",
        "0 of 1",
        "out of time",
        "exit code 2",
        "prefers-color-scheme: dark",
    ):
        assert text in found
    assert not re.search(r"""(?:src|href)=["']?(?:http|//)""", found)


def test_a_report_without_results_has_a_page_too(tmp_path: Path) -> None:
    steps = steps_of(SMALL, tmp_path)
    store.claim(tmp_path / "r", {})
    records = [store.not_run(step, "not yet", estimate_s=1.0) for step in steps]
    report = store.assemble(tmp_path / "r", machine=MACHINE, records=records, minutes=8)
    assert "nothing measured yet" in page.html(report)
