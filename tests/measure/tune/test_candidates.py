"""What a tune tries beside the profile's own way to speculate, and what `--candidate` may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.errors import UsageError
from specserve.measure.tune.candidates import ideas, not_tried
from specserve.measure.tune.plan import Candidate, TuneRequest
from specserve.profile.load import load_profile

PROFILE = """\
target: {model: big}
speculation: {method: ngram, prompt_lookup_min: 2, prompt_lookup_max: 4, num_speculative_tokens: 5}
alternatives:
  small: {method: draft_model, model: org/small, num_speculative_tokens: 3}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "p.yaml"
    made.write_text(PROFILE, encoding="utf-8")
    return made


def found(file: Path, *names: str) -> list[Candidate]:
    return ideas(load_profile(str(file)), TuneRequest(str(file), candidates=names), temperatures=(0.0,))


def test_what_speculates_as_the_profile_does_is_no_other_candidate(file: Path) -> None:
    assert [(idea.name, idea.is_own) for idea in found(file, "ngram", "suffix")] == [
        ("ngram", True), ("suffix", False),
    ]  # fmt: skip


def test_a_candidate_is_an_alternative_a_method_or_a_draft_model(file: Path, tmp_path: Path) -> None:
    (tmp_path / "Mine").mkdir()
    _, named, model, folder = found(file, "small", "org/Other", str(tmp_path / "Mine"))
    assert (named.name, named.keys["model"]) == ("small", "org/small")
    assert (model.name, dict(model.keys)) == ("draft-other", {"method": "draft_model", "model": "org/Other"})
    assert (folder.name, folder.keys["model"]) == ("draft-mine", str(tmp_path / "Mine"))
    with pytest.raises(UsageError, match="`--candidate magic` is neither a method") as raised:
        found(file, "magic")
    assert raised.value.hint == "use ngram, suffix, small, or a draft model (ORG/NAME or a folder)"


def test_what_was_not_named_says_how_to_add_it(file: Path) -> None:
    def names(*candidates: str) -> dict[str, str | None]:
        request = TuneRequest(str(file), candidates=candidates)
        return {each.name: each.left_out for each in not_tried(load_profile(str(file)), request)}

    assert names()["small"] == "needs another launch: `--candidate small`"
    assert "ngram" not in names() and "small" not in names("small")
