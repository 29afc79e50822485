"""The catalogue of published drafts against the rules, and as alternatives of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.measure.drafts import add_alternatives, find_drafts
from specserve.models.drafts import catalogue
from specserve.profile.load import load_profile


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
