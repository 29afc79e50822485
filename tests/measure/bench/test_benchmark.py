"""A run of `specserve bench` that is taken up again: what it may be mixed with, and what its result keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specserve.cli.app import _run
from specserve.diagnostics import Notices
from specserve.measure.bench.passes import Pass, blocks, resume
from specserve.measure.bench.plan import BenchRequest, plan_bench
from specserve.measure.bench.run import new_directory
from specserve.measure.workloads import load
from tests.measure.bench.making import request

NOTE = "mine: 1 of 4 lines of the log were left out"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run of two servers all of which was measured, without a result; nothing listens now."""
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"text {number}"}) + "\n" for number in range(3)))
    asked = BenchRequest(
        profile="http://127.0.0.1:9", others=("b=http://127.0.0.1:10",), workloads=(str(file),), concurrency="1",
    )  # fmt: skip
    plan = plan_bench(asked, notices=Notices())
    workloads = {name: load(source) for name, source in plan.sources.items()}
    with new_directory(plan, str(tmp_path / "run")) as directory:
        for session in plan.sessions:
            for block in blocks(plan.points, workloads, count=plan.blocks, launch=session.launch):
                requests = tuple(request(f"{each.id}#{at}") for at, each in enumerate(block.prompts))
                for variant in session.variants:
                    directory.append(
                        Pass(session.launch, block.number, block.point, variant, 1.0, 0.1, requests)
                    )
        directory.update(
            room={"chat": True, "max_model_len": None}, notes=[NOTE],
            models={"127.0.0.1:9": "served", "b": "served"},
        )  # fmt: skip
        return directory.path


def test_a_result_that_is_made_again_keeps_what_the_sessions_learned(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["bench", "--resume", str(run), "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert json.loads((run / "result.json").read_text()) == content
    assert [variant["model"] for variant in content["variants"]] == ["served", "served"]
    assert NOTE in content["notes"]
    assert not any("resumed" in note for note in content["notes"])
    assert content["is_complete"] and len(content["cells"]) == 2


def test_another_server_than_the_one_that_was_measured_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with resume(run) as directory:
        directory.pin("`b`", "http://127.0.0.1:11")
    assert _run(["bench", "--resume", str(run)]) == 2
    assert "`b` changed since the run began" in capsys.readouterr().err
