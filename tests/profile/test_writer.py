"""YAML with comments: what is read back is what was meant, and a changed block leaves all else as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.profile.load import load_profile
from specserve.profile.tree import Node, parse
from specserve.profile.writer import Commented, comment, rewrite_section, yaml_text
from specserve.vllm.arguments import jsonable

TEXT = st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=30)
MISREAD = (
    "yes", "no", "on", "y", "0x1F", "0o17", "010", "1e3", "1e-3", "1_000", "12:30:45", "2026-01-01", "~", ".5", "null",
    "=", "<<", "-", "?", "# x", "a: b", "- x", "{a}", "*a", "&a", "!a", "%a", "@a", "`a`", "a\nb", " a ", "",
)  # fmt: skip
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT | st.sampled_from(MISREAD)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def plain(tree: Node) -> Any:
    if isinstance(tree.value, dict):
        return {key: plain(child) for key, child in tree.value.items()}
    if isinstance(tree.value, list):
        return [plain(child) for child in tree.value]
    return tree.value


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=5), TEXT, st.booleans())
def test_every_reader_gets_the_same_values(values: dict[str, Any], told: str, flow: bool) -> None:
    noted = {key: Commented(told, item) for key, item in values.items()}
    for given_values in (values, noted):
        text = yaml_text(given_values, head=told, flow=flow)
        assert yaml.safe_load(text) == values
        tree, findings = parse(text.encode(), file="x")
        if not findings:  # no profile may hold a key with control characters
            assert tree is not None and plain(tree) == values


@pytest.mark.parametrize("text", MISREAD)
def test_a_text_that_yaml_would_read_as_something_else_is_quoted(text: str) -> None:
    assert yaml.safe_load(yaml_text({"a": text, text: [text]})) == {"a": text, text: [text]}


def test_comments_stand_above_what_they_are_about() -> None:
    values = {"a": Commented("why", {"b": [Commented("which", {"c": Commented("what", 1)})]})}
    written = yaml_text(values, head="top\n\nmore")
    assert written == "# top\n#\n# more\n# why\na:\n  b:\n  # which\n  # what\n  - c: 1\n"


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_a_comment_is_nothing_but_comments(text: str) -> None:
    assert all(line.startswith("  #") for line in comment(text, indent=2).splitlines())


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


def rewritten(tmp_path: Path, text: str, wanted: Mapping[str, Any] | None, remark: str = REMARK) -> str:
    """The profile's text afterwards; what it then says is what is wanted, or it is refused."""
    file = tmp_path / "p.yaml"
    file.write_text(dedent(text), encoding="utf-8")
    assert rewrite_section(str(file), "speculation", wanted, remark=remark)
    assert not rewrite_section(str(file), "speculation", wanted, remark=remark)
    found = load_profile(str(file)).speculation
    assert jsonable(dict(found.keys) if found else None) == (jsonable(wanted) if wanted else None)
    return file.read_text(encoding="utf-8")


def test_a_changed_value_leaves_every_other_character_as_it_was(tmp_path: Path) -> None:
    wanted = {"method": "draft_model", "model": "small", "num_speculative_tokens": 6}
    wanted["draft_sample_method"] = "probabilistic"
    after = rewritten(tmp_path, BLOCK, wanted)
    before = dedent(BLOCK).replace("num_speculative_tokens: 4 ", "num_speculative_tokens: 6 ")
    assert after.replace(f"# {REMARK}\n", "") == before
    assert f"# {REMARK}\nspeculation:" in after


@pytest.mark.parametrize("text", [BLOCK, FLOW])
@pytest.mark.parametrize("wanted", [None, {"method": "suffix", "num_speculative_tokens": 4}])
def test_without_speculation_or_with_another_method_the_block_is_replaced(
    tmp_path: Path, text: str, wanted: Mapping[str, Any] | None
) -> None:
    after = rewritten(tmp_path, text, wanted)
    assert ("\nspeculation: null\n" in after) == (wanted is None) and after.count("max_num_seqs: 16") == 1


def test_a_comment_that_was_written_below_a_remark_stays_when_the_remark_is_replaced(tmp_path: Path) -> None:
    wanted = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4}
    longer = f"{REMARK}, 1.96x at 2 (code), 1.17x at 4 (code), 1.03x at 8 (code)"
    once = rewritten(tmp_path, FLOW, wanted, longer)
    mine = once.replace("speculation:", "# never above 8, the incident of May\nspeculation:", 1)
    mine = mine.replace("# specserve tune", "# above\n# specserve tune", 1)
    twice = rewritten(tmp_path, mine, wanted, longer.replace("2.10x", "2.20x"))
    comments = [line for line in twice.splitlines() if line.startswith("#")]
    assert comments[0] == "# above"
    assert comments[1] == "# never above 8, the incident of May"
    assert twice.count("specserve tune:") == 1
    assert "2.10x" not in twice


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


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 64),
    st.none() | st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8)), min_size=1, max_size=4),
    st.sampled_from([BLOCK, FLOW, LISTED]),
)
def test_whatever_was_chosen_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, tokens: int, widths: list[tuple[int, int]] | None, text: str
) -> None:
    keys = dict(yaml.safe_load(dedent(text))["speculation"])
    keys["num_speculative_tokens"] = tokens
    if widths is not None:
        first, ranges = 1, []
        for width, k in widths:
            ranges.append([first, first + width - 1, k])
            first += width
        keys["num_speculative_tokens_per_batch_size"] = ranges
    rewritten(tmp_path_factory.mktemp("p"), text, keys)
