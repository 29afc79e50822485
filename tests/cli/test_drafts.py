"""`specserve drafts`: which drafts are published for a target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run
from specserve.models.drafts import drafts_for

TARGET = "openai/gpt-oss-120b"


def test_the_drafts_of_a_target_stand_in_a_table_with_their_sources(
    capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    assert _run(["drafts", TARGET]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 80 or "https://" in line for line in text.splitlines())
    golden("drafts.txt", text)


def test_a_profile_and_a_quantized_copy_have_the_drafts_of_their_target(
    capsys: pytest.CaptureFixture[str], write: Callable[..., Path]
) -> None:
    file = write("target: {model: org/gpt-oss-120b-FP8-dynamic}\n")
    assert _run(["drafts", str(file), "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["version"], shown["target"]) == (1, "org/gpt-oss-120b-FP8-dynamic")
    assert {row["model"] for row in shown["drafts"]} == {draft.model for draft in drafts_for(TARGET)}
    assert not any(row["refused"] for row in shown["drafts"])
    assert all(row["sources"] for row in shown["drafts"])


def test_a_target_without_drafts_is_told_what_needs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["drafts", "org/unknown\x1b[31m"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("no published draft for org/unknown\\x1b[31m is in the catalogue")
    assert "`ngram` and `suffix` need no draft" in text


def test_a_bad_profile_is_an_error_at_its_place(
    capsys: pytest.CaptureFixture[str], write: Callable[..., Path]
) -> None:
    assert _run(["drafts", str(write("target: {modle: org/x}\n"))]) == 2
    assert "`modle`" in capsys.readouterr().err


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "drafts.md").read_text(encoding="utf-8")
    assert _run(["drafts", "Qwen/Qwen3-32B"]) == 0
    assert f"$ specserve drafts Qwen/Qwen3-32B\n{capsys.readouterr().out}```\n" in page
