"""A profile's `speculation` changed in its text: the new block is read back, all else stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.plan.writer import with_speculation
from specserve.profile.fingerprint import jsonable
from specserve.profile.load import load_profile

REMARK = "specserve tune: 2026-11-21, cpu, vLLM 0.32.0: measured 2.10x at 1 (code)"
BLOCK = """\
    # what this is for
    target:
      model: big                       # the one
    speculation:                       # and its helper
      method: draft_model
      model: small
      num_speculative_tokens: 4        # a guess
      draft_sample_method: probabilistic   # sampled
    engine: {max_num_seqs: 16}         # few
    """
FLOW = """\
    target: {model: big}
    speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_max: 4}  # no model
    engine:
      max_num_seqs: 16
    """


def rewritten(tmp_path: Path, text: str, wanted: Mapping[str, Any] | None) -> str:
    file = tmp_path / "p.yaml"
    file.write_text(dedent(text), encoding="utf-8")
    profile = load_profile(str(file))
    after = with_speculation(dedent(text), profile, wanted, remark=REMARK)
    file.write_text(after, encoding="utf-8")
    found = load_profile(str(file)).speculation
    assert jsonable(dict(found.keys) if found else None) == (jsonable(wanted) if wanted else None)
    return after


def test_a_changed_value_leaves_every_other_character_as_it_was(tmp_path: Path) -> None:
    wanted = {
        "method": "draft_model",
        "model": "small",
        "num_speculative_tokens": 6,
        "draft_sample_method": "probabilistic",
    }
    after = rewritten(tmp_path, BLOCK, wanted)
    before = dedent(BLOCK).replace("num_speculative_tokens: 4 ", "num_speculative_tokens: 6 ")
    assert after.replace(f"# {REMARK}\n", "") == before
    assert f"# {REMARK}\nspeculation:" in after


def test_a_schedule_is_written_behind_the_last_key(tmp_path: Path) -> None:
    wanted = {
        "method": "draft_model", "model": "small", "num_speculative_tokens": 6, "draft_sample_method": "probabilistic",
        "num_speculative_tokens_per_batch_size": [[1, 2, 6], [3, 8, 2]],
    }  # fmt: skip
    after = rewritten(tmp_path, BLOCK, wanted)
    assert "  num_speculative_tokens_per_batch_size: [[1, 2, 6], [3, 8, 2]]\nengine:" in after
    assert "# sampled" in after and "# a guess" in after and "# few" in after


def test_a_schedule_that_is_wanted_no_more_is_gone(tmp_path: Path) -> None:
    text = BLOCK.replace(
        "    engine:", "      num_speculative_tokens_per_batch_size: [[1, 8, 4], [9, 16, 0]]\n    engine:"
    )
    wanted = {
        "method": "draft_model",
        "model": "small",
        "num_speculative_tokens": 3,
        "draft_sample_method": "greedy",
    }
    after = rewritten(tmp_path, text, wanted)
    assert "per_batch_size" not in after
    assert "draft_sample_method: greedy   # sampled" in after


def test_a_block_in_braces_is_changed_within_them(tmp_path: Path) -> None:
    wanted = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    after = rewritten(tmp_path, FLOW, wanted)
    assert (
        "{method: ngram, num_speculative_tokens: 8, prompt_lookup_max: 4, prompt_lookup_min: 2}  # no model"
        in after
    )


@pytest.mark.parametrize("gone", ["num_speculative_tokens_per_batch_size", "prompt_lookup_max"])
def test_a_part_of_a_line_is_taken_out_with_its_comma(tmp_path: Path, gone: str) -> None:
    text = FLOW.replace(
        "prompt_lookup_max: 4", "num_speculative_tokens_per_batch_size: [[1, 2, 5]], prompt_lookup_max: 4"
    )
    wanted: dict[str, Any] = {
        "method": "ngram", "num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": [[1, 2, 5]],
        "prompt_lookup_max": 4,
    }  # fmt: skip
    del wanted[gone]
    assert gone not in rewritten(tmp_path, text, wanted)


@pytest.mark.parametrize("text", [BLOCK, FLOW])
def test_without_speculation_the_old_block_stays_as_a_comment(tmp_path: Path, text: str) -> None:
    after = rewritten(tmp_path, text, None)
    assert "\nspeculation: null\n" in after
    assert "# speculation:" in after
    assert "max_num_seqs: 16" in after


def test_another_method_stands_below_the_old_block(tmp_path: Path) -> None:
    after = rewritten(
        tmp_path, BLOCK, {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    )
    assert "#   method: draft_model\n" in after
    assert "\nspeculation:\n  method: ngram\n" in after
    assert "engine: {max_num_seqs: 16}         # few" in after


def test_a_second_remark_takes_the_place_of_the_first(tmp_path: Path) -> None:
    wanted = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4}
    once = rewritten(tmp_path, FLOW, wanted)
    profile = load_profile(str(tmp_path / "p.yaml"))
    twice = with_speculation(once, profile, wanted, remark=REMARK.replace("2.10x", "2.20x"))
    assert twice == once.replace("2.10x", "2.20x")


def test_a_comment_that_was_written_below_a_remark_stays_when_the_remark_is_replaced(tmp_path: Path) -> None:
    wanted = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4}
    longer = f"{REMARK}, 1.96x at 2 (code), 1.17x at 4 (code), 1.03x at 8 (code)"
    file = tmp_path / "p.yaml"
    file.write_text(dedent(FLOW), encoding="utf-8")
    once = with_speculation(dedent(FLOW), load_profile(str(file)), wanted, remark=longer)
    mine = once.replace("speculation:", "# never above 8, the incident of May\nspeculation:", 1)
    mine = mine.replace("# specserve tune", "# above\n# specserve tune", 1)
    file.write_text(mine, encoding="utf-8")
    twice = with_speculation(mine, load_profile(str(file)), wanted, remark=longer.replace("2.10x", "2.20x"))
    comments = [line for line in twice.splitlines() if line.startswith("#")]
    assert comments[0] == "# above"
    assert comments[1] == "# never above 8, the incident of May"
    assert twice.count("specserve tune:") == 1
    assert "2.10x" not in twice


def test_an_inherited_block_is_left_alone_and_written_over_in_the_child(tmp_path: Path) -> None:
    (tmp_path / "_base.yaml").write_text(dedent(FLOW), encoding="utf-8")
    wanted = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4}
    after = rewritten(tmp_path, "extends: _base.yaml\n", wanted)
    assert after.startswith("extends: _base.yaml\n")
    assert (tmp_path / "_base.yaml").read_text() == dedent(FLOW)


LISTED = """\
    target: {model: big}
    speculation:
      method: draft_model
      num_speculative_tokens_per_batch_size:
        - [1, 4, 5]
        - [5, 8, 2]   # two

      # about the draft
      model: small
      num_speculative_tokens: 5

    # about the engine
    engine: {max_num_seqs: 4}
    """


@pytest.mark.parametrize("ranges", [None, [[1, 2, 5], [3, 8, 0]]])
def test_a_schedule_in_lines_of_its_own_leaves_the_comments_behind_it(
    tmp_path: Path, ranges: list[list[int]] | None
) -> None:
    wanted: dict[str, Any] = {"method": "draft_model", "model": "small", "num_speculative_tokens": 5}
    if ranges is not None:
        wanted["num_speculative_tokens_per_batch_size"] = ranges
    after = rewritten(tmp_path, LISTED, wanted)
    assert "  # about the draft\n  model: small\n" in after
    assert "# about the engine\n" in after


@pytest.mark.parametrize(
    "text", [BLOCK.partition("    engine:")[0], LISTED.partition("    # about the e")[0]]
)
def test_a_block_at_the_end_of_the_file_is_changed_too(tmp_path: Path, text: str) -> None:
    rewritten(tmp_path, text, None)
    rewritten(tmp_path, text, {**load_keys(text), "num_speculative_tokens": 7})
    rewritten(tmp_path, text.rstrip(), {**load_keys(text), "num_speculative_tokens": 7})
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 8, 0]]}
    rewritten(tmp_path, text.rstrip(), {**load_keys(text), **schedule})


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 64),
    st.none() | st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8)), min_size=1, max_size=4),
    st.sampled_from([BLOCK, FLOW, LISTED]),
)
def test_whatever_was_chosen_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, tokens: int, widths: list[tuple[int, int]] | None, text: str
) -> None:
    keys = load_keys(text)
    keys["num_speculative_tokens"] = tokens
    if widths is not None:
        first, ranges = 1, []
        for width, k in widths:
            ranges.append([first, first + width - 1, k])
            first += width
        keys["num_speculative_tokens_per_batch_size"] = ranges
    rewritten(tmp_path_factory.mktemp("p"), text, keys)


def load_keys(text: str) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load(dedent(text))["speculation"])
