"""Which draft: by the target's configuration, by the Hub, and on a named machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import HubUnreachable
from specserve.hardware.accelerators import assume
from specserve.measure.drafts import DraftOptions, JudgedDraft, find_drafts
from specserve.models.drafts import Source
from tests.models.tiny import CONFIG, write_model

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from hub_server import HubServer

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
FOUR = DraftOptions(machine=assume("4xH100-80GB"))


def of(found: tuple[JudgedDraft, ...], model: str | None, method: str | None = None) -> JudgedDraft:
    (one,) = [each for each in found if each.draft.model == model and method in (None, each.draft.method)]
    return one


def test_on_a_machine_each_draft_is_weighed_and_the_largest_reported_length_comes_first() -> None:
    found = find_drafts(LLAMA, wanted=FOUR)
    first = found.drafts[0]
    assert first.draft.model == "nebius/EAGLE3-Llama-3.3-70B-Instruct"
    assert first.memory and first.memory.verdict == "fit" and first.is_assumed
    lengths = [each.draft.length or 0 for each in found.drafts if not each.findings]
    assert lengths == sorted(lengths, reverse=True)


def test_without_a_machine_nothing_is_weighed() -> None:
    found = find_drafts(LLAMA)
    assert all(each.memory is None for each in found.drafts)
    assert found.notes == ()


def test_what_needs_no_draft_stands_there_too_with_the_settings_that_tune_takes() -> None:
    found = find_drafts("org/unknown")
    assert [each.draft.method for each in found.drafts] == ["ngram", "suffix"]
    assert not any(each.is_refused or each.findings for each in found.drafts)


def test_a_target_that_nobody_knows_is_judged_and_the_note_says_why_no_more() -> None:
    found = find_drafts("moonshotai/Kimi-K2.6", wanted=DraftOptions(machine=assume("8xH200-141GB")))
    assert found.drafts and all(each.memory is None for each in found.drafts)
    assert "memory is not estimated: `moonshotai/Kimi-K2.6`" in found.notes[0]


def test_what_does_not_fit_stands_behind_what_does(write: Callable[..., Path]) -> None:
    file = write(f"""\
        target: {{model: {LLAMA}, tensor_parallel_size: 1}}
        speculation: {{method: ngram, prompt_lookup_max: 4, num_speculative_tokens: 4}}
        """)
    found = find_drafts(str(file), wanted=DraftOptions(machine=assume("1xH100-80GB")))
    assert all(each.memory and each.memory.verdict == "does_not_fit" for each in found.drafts)
    assert found.drafts[0].draft.method == "ngram"


def test_layers_of_the_target_are_found_in_its_configuration(tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": "deepseek_v3", "num_nextn_predict_layers": 2}
    folder = write_model(tmp_path / "own-layers", config=config)
    found = find_drafts(str(folder))
    own = of(found.drafts, None, "mtp")
    assert own.draft.num_speculative_tokens == 2
    assert own.draft.sources == (Source(f"config.json of {folder}"),)


def test_a_relative_folder_is_the_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**CONFIG, "model_type": "deepseek_v3", "num_nextn_predict_layers": 2}
    folder = write_model(tmp_path / "models" / "own-layers", config=config)
    monkeypatch.chdir(folder.parent)
    for name in ("./own-layers", "../models/own-layers"):
        assert of(find_drafts(name).drafts, None, "mtp").draft.num_speculative_tokens == 2


def test_the_hub_lists_heads_and_says_what_they_are(tmp_path: Path, hub: HubServer) -> None:
    target = write_model(tmp_path / "target")
    head = {
        **CONFIG,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 64,
    }
    base = "base_model:org/target"
    hub.add("org/target", target)
    hub.add("team/head", write_model(tmp_path / "head", config=head), tags=(base, "eagle3", "license:mit"))
    hub.add("team/finetuned", write_model(tmp_path / "finetuned"), tags=(base, "eagle"))
    hub.add("team/other", write_model(tmp_path / "other", config=head), tags=("base_model:org/x", "eagle3"))

    found = find_drafts("org/target", wanted=DraftOptions(online=True))

    assert [each.draft.model for each in found.drafts] == ["team/head", None, None]
    one = found.drafts[0].draft
    assert (one.method, one.license, one.sources[0].date) == ("eagle3", "mit", "2026-11-01")
    asked = [request.path for request in hub.requests if request.path.startswith("/api/models?")]
    assert asked and all("limit=50" in path for path in asked)


def test_a_hub_that_does_not_answer_is_an_error(tmp_path: Path, hub: HubServer) -> None:
    hub.add("org/target", write_model(tmp_path / "target"))
    hub.close()
    with pytest.raises(HubUnreachable) as caught:
        find_drafts("org/target", wanted=DraftOptions(online=True))
    assert "leave `--online` out" in str(caught.value.hint)


def test_the_json_says_what_is_assumed_and_what_nobody_reports(capsys: pytest.CaptureFixture[str]) -> None:
    from specserve.cli.app import _run

    assert _run(["drafts", LLAMA, "--assume", "4xH100-80GB", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["machine"] == {"count": 4, "nodes": 1, "accelerator": "H100-80GB"}
    rows = {row["model"] or row["method"]: row for row in shown["drafts"]}
    head = rows["nebius/EAGLE3-Llama-3.3-70B-Instruct"]
    assert head["memory"]["is_head_assumed"] and head["memory"]["verdict"] == "fit"


def test_the_page_shows_the_table_of_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    from specserve.cli.app import _run

    page = (Path(__file__).parents[3] / "docs" / "how-to" / "drafts.md").read_text(encoding="utf-8")
    assert _run(["drafts", LLAMA, "--assume", "4xH100-80GB"]) == 0
    shown = capsys.readouterr().out
    table, _, rest = shown.partition("\n\n  nebius/EAGLE3-Llama-3.3-70B-Instruct\n    license")
    notes = rest[rest.index("\n\ntokens/step") :]
    assert f"$ specserve drafts {LLAMA} --assume 4xH100-80GB\n{table}\n  …{notes}" in page
