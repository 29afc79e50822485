"""The catalogue of published drafts against the rules, and as alternatives of a profile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specserve.measure.drafts import DraftOptions, add_alternatives, find_drafts
from specserve.models.drafts import catalogue
from specserve.profile.load import load_profile

ROOT = Path(__file__).parents[3]
TARGETS = sorted({entry.target for entry in catalogue()})


@pytest.mark.parametrize("target", TARGETS)
def test_no_rule_refuses_a_draft_for_its_own_target_and_each_can_be_written(
    target: str, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"target: {{model: {target}}}\n")
    found = find_drafts(str(file)).drafts
    assert found and not any(each.is_refused for each in found)
    drafts = [each.draft for each in found]
    places = add_alternatives(
        str(file), [draft.model or draft.method for draft in drafts], wanted=DraftOptions()
    )
    written = load_profile(file).alternatives
    assert [written[place.partition(".")[2]].method for place in places] == [draft.method for draft in drafts]


def test_the_script_prints_how_many_the_rules_could_judge() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "check_drafts.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(catalogue())
    assert f"{count} drafts for {len(TARGETS)} targets, each with a source" in done.stdout
    assert f"rules that need no model judged {count} (100 %), refused none" in done.stdout
