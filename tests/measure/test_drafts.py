"""Which draft: by the target's configuration, by the Hub, and on a named machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hub_server import HubServer

from specserve.errors import FactError
from specserve.hardware.accelerators import assume
from specserve.measure.drafts import add_alternatives, find_drafts
from specserve.models.drafts import Source, catalogue
from specserve.profile.load import load_profile
from tests.models.tiny import CONFIG, write_model

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def test_on_a_machine_each_draft_is_weighed_and_the_largest_reported_length_comes_first() -> None:
    found = find_drafts(LLAMA, machine=assume("4xH100-80GB"))
    first = found.drafts[0]
    assert found.machine == "4x H100-80GB"
    assert first.draft.model == "nebius/EAGLE3-Llama-3.3-70B-Instruct"
    assert (first.memory, first.draft_bytes) == (None, None)  # nobody knows the head's size
    assert next(each.memory for each in found.drafts if each.draft.method == "ngram") == "fit"
    lengths = [each.draft.length for each in found.drafts if not each.is_refused]
    assert lengths == sorted(lengths, reverse=True)
    assert all(each.memory is None for each in find_drafts(LLAMA).drafts)


def test_a_head_with_a_published_configuration_has_its_size() -> None:
    found = find_drafts("meta-llama/Llama-3.1-8B-Instruct", machine=assume("1xH100-80GB"))
    heads = {each.draft.model: each for each in found.drafts}
    known = heads["yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"]
    assert known.memory == "fit" and (known.draft_bytes or 0) > 2**29


def test_a_target_that_nobody_knows_is_judged_and_the_note_says_why_no_more() -> None:
    found = find_drafts("moonshotai/Kimi-K2.6", machine=assume("8xH200-141GB"))
    assert found.drafts and all(each.memory is None for each in found.drafts)
    assert "memory is not estimated: `moonshotai/Kimi-K2.6`" in found.notes[0]


def test_what_does_not_fit_is_told(write: Callable[..., Path]) -> None:
    file = write(f"target: {{model: {LLAMA}, tensor_parallel_size: 1}}\n")
    found = find_drafts(str(file), machine=assume("1xH100-80GB"))
    assert {each.memory for each in found.drafts} == {"does_not_fit"}


@pytest.mark.parametrize("name", ["{folder}", "./own-layers", "../models/own-layers"])
def test_layers_of_the_target_are_found_in_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    config = {**CONFIG, "model_type": "deepseek_v3", "num_nextn_predict_layers": 2}
    folder = write_model(tmp_path / "models" / "own-layers", config=config)
    monkeypatch.chdir(folder.parent)
    (own,) = [
        each.draft for each in find_drafts(name.format(folder=folder)).drafts if each.draft.method == "mtp"
    ]
    assert own.num_speculative_tokens == 2
    assert own.sources[0].url.startswith("config.json of ") and isinstance(own.sources[0], Source)


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
    hub.add("team/head", write_model(tmp_path / "head", config=head), tags=(base, "eagle3"))
    hub.add("team/finetuned", write_model(tmp_path / "finetuned"), tags=(base, "eagle"))
    hub.add("team/other", write_model(tmp_path / "other", config=head), tags=("base_model:org/x", "eagle3"))

    found = find_drafts("org/target", online=True)

    assert [each.draft.model for each in found.drafts] == ["team/head", None, None]
    one = found.drafts[0].draft
    assert (one.method, one.sources[0].date) == ("eagle3", "2026-11-01")
    paths = [request.path for request in hub.requests if request.path.startswith("/api/models?")]
    assert paths and all("limit=50" in path for path in paths)


def test_a_hub_that_does_not_answer_is_an_error(tmp_path: Path, hub: HubServer) -> None:
    hub.add("org/target", write_model(tmp_path / "target"))
    hub.close()
    with pytest.raises(FactError):
        find_drafts("org/target", online=True)


@pytest.mark.parametrize("target", sorted({entry.target for entry in catalogue()}))
def test_no_rule_refuses_a_draft_for_its_own_target_and_each_can_be_written(
    target: str, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"target: {{model: {target}}}\n")
    found = find_drafts(str(file))
    assert found.drafts and not any(each.is_refused for each in found.drafts)
    drafts = [each.draft for each in found.drafts]
    places = add_alternatives(str(file), [draft.model or draft.method for draft in drafts], found=found)
    written = load_profile(file).alternatives
    assert [written[place.partition(".")[2]].method for place in places] == [each.method for each in drafts]
