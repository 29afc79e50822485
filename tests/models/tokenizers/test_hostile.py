"""Files that nobody should have written: a verdict with its reason, never a traceback, bounded time and memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.models import sample, vocabulary
from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.tokenizercompare import TokenDifference, compare
from tests.models.tokenizers.made import document, special

Make = Callable[..., ModelFacts]
VERDICTS = {"identical", "padding_only", "special_tokens_differ", "overlap", "incompatible", "not_checked"}
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
ids = st.integers(-3, 40) | st.integers(2**31, 2**65) | st.none() | st.text(max_size=2) | st.floats()
vocabularies = st.dictionaries(st.text(max_size=3), ids, max_size=6) | anything
documents = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"vocab": vocabularies}, optional={"merges": anything, "type": anything}
        )
    },
    optional={"added_tokens": st.lists(st.fixed_dictionaries({"id": ids, "content": anything})) | anything},
)
fresh = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@pytest.fixture(autouse=True)
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder has tests of its own; hundreds of children would be slow."""
    monkeypatch.setattr(sample, "MOST_S", 5.0)


@fresh
@given(made=documents | anything, config=anything, decoder=anything)
def test_any_json_gets_a_verdict(model: Make, made: Any, config: Any, decoder: Any) -> None:
    hostile = model(
        tokenizer__json=made,
        tokenizer_config__json={
            "added_tokens_decoder": decoder,
            "eos_token": config,
            "chat_template": config,
        },
        special_tokens_map__json=config,
    )
    for result in (compare(model(document(size=300)), hostile), compare(hostile, model(document(size=300)))):
        assert result.verdict in VERDICTS
        assert result.verdict != "not_checked" or result.reasons


@fresh
@given(
    data=st.binary(max_size=200),
    name=st.sampled_from(["tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json"]),
)
def test_any_bytes_get_a_verdict(model: Make, data: bytes, name: str) -> None:
    hostile = model(**{name.replace(".", "__"): data})
    assert compare(model(document(size=300)), hostile).verdict in VERDICTS


def test_a_file_of_100_mb_is_not_read(model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    large = model(tokenizer__json=b"{}")
    path = large.files["tokenizer.json"].path
    assert path is not None
    with path.open("r+b") as file:
        file.truncate(100 * 2**20)  # sparse: it takes no room on the disk
    result = compare(
        model(document()),
        ModelFacts(
            "org/large", "directory", {}, files={"tokenizer.json": ModelFile(100 * 2**20, None, path)}
        ),
    )
    assert result.verdict == "not_checked"
    assert result.reasons[0].endswith("is larger than 64 MiB")


def test_more_values_than_any_tokenizer_has_are_not_parsed(
    model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "MOST_VALUES", 1000)
    result = compare(model(document()), model(tokenizer__json=b"[" + b"[],[]," * 1000 + b"0]"))
    assert result.reasons == ("`tokenizer.json` holds more than 1,000 values",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b'{"model": {"vocab": {"a": 0', "not valid JSON"),
        (b'{"model": "\xff"}', "not UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9085657\n", "a Git LFS pointer"),
        (b'{"model": {"vocab": {"a": -1}}}', "ids outside 0"),
        (b'{"model": {"vocab": {"a": 99999999999}}}', "ids outside 0"),
        (b'{"model": {"vocab": {"a": 1' + b"0" * 5000 + b"}}}", "too many digits"),
        (b'{"model": {"vocab": {"a": true}}}', "not whole numbers"),
        (b'{"model": {"vocab": {}}}', "is empty"),
        (b'{"model": {"vocab": [1, 2]}}', "not a text"),
        (b'{"model": [], "added_tokens": 3}', "no `model`"),
        (b'{"model": {"vocab": {"a": 0}}, "added_tokens": 3}', "not a list"),
    ],
)
def test_what_is_wrong_is_said(model: Make, data: bytes, reason: str) -> None:
    result = compare(model(document()), model(tokenizer__json=data))
    assert result.verdict == "not_checked"
    assert reason in result.reasons[0]


def test_ids_with_holes_and_ids_used_twice_are_followed(model: Make) -> None:
    made = document(size=300)
    holes = {text: 3 * index for text, index in made["model"]["vocab"].items()}
    twice = {**made["model"]["vocab"], "twice": 5}
    for vocab in (holes, twice):
        other = {**made, "model": {**made["model"], "vocab": vocab}}
        assert compare(model(made, vocab_size=2048), model(other, vocab_size=2048)).differing_ids


def test_merges_that_look_like_the_end_of_the_file_do_not_mislead(model: Make) -> None:
    made = document(size=300)
    vocab = {**made["model"]["vocab"], '"merges": [': 300, "]}}": 301}
    odd = {**made, "model": {**made["model"], "vocab": vocab}}
    assert (
        compare(model(odd), model(tokenizer__json=json.dumps(odd, indent=3).encode())).verdict == "identical"
    )


def test_a_pattern_that_never_ends_costs_no_more_than_its_limit(
    model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MOST_S", 1.0)
    made = document(size=300)
    endless = {
        "type": "Split",
        "pattern": {"Regex": "(a|a|[a-z ]+)+(?=#)"},
        "behavior": "Isolated",
        "invert": False,
    }
    hostile = {
        **made,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [endless, made["pre_tokenizer"]]},
    }
    result = compare(model(hostile), model(document(size=310)))
    assert result.mismatch_by_occurrence is not None


def test_a_replacement_that_grows_without_end_meets_the_limit_of_memory(model: Make) -> None:
    made = document(size=300)
    grow = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 20_000}
    hostile = {**made, "normalizer": {"type": "Sequence", "normalizers": [grow] * 6}}
    result = compare(model(hostile), model(document(size=310)))
    assert result.verdict == "overlap"
    assert result.mismatch_by_occurrence is not None


def test_names_that_lead_nowhere_are_not_checked(model: Make) -> None:
    gone = model(document())
    path = gone.files["tokenizer.json"].path
    assert path is not None
    path.unlink()
    path.symlink_to(path)
    assert compare(model(document(size=400)), gone).verdict == "not_checked"
    assert compare(gone, model(document(size=400))).verdict == "not_checked"


def test_a_million_special_tokens_are_no_reason_to_wait(model: Make) -> None:
    made = document(size=300)
    many = {**made, "added_tokens": [special(f"<{n}>", index=300 + n) for n in range(20_000)]}
    result = compare(model(made, vocab_size=20_300), model(many, vocab_size=20_300))
    assert (result.verdict, result.differing_ids) == ("special_tokens_differ", 20_000)


@pytest.mark.parametrize("depth", [50, 300, *range(880, 1000, 10)])
def test_nesting_near_every_limit_is_survived(model: Make, depth: int) -> None:
    made = document(size=300)
    nested = {"normalizer": json.loads("[" * 40 + "]" * 40)}
    text = json.dumps({**made, **nested}).replace("[" * 40 + "]" * 40, "[" * depth + "]" * depth)
    other = text.replace("[" * depth + "]" * depth, "[" * depth + "1" + "]" * depth)
    result = compare(model(tokenizer__json=text.encode()), model(tokenizer__json=other.encode()))
    assert result.verdict in ("identical", "not_checked")


def test_half_a_character_and_an_endless_token_can_be_printed(model: Make) -> None:
    made = document(size=300)
    hostile = {
        **made,
        "model": {**made["model"], "vocab": {**made["model"]["vocab"], "\ud800": 300, "x" * 99_999: 301}},
    }
    data = json.dumps(hostile).encode()
    result = compare(model(made), model(tokenizer__json=data))
    assert result.first_difference == TokenDifference(300, None, "?")
    assert max(map(len, result.reasons)) < 200
    "".join(result.reasons).encode()
