"""`specserve drafts`: which drafts are published for a target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run
from specserve.models.drafts import drafts_for
from specserve.profile.load import load_profile
from tests.cli.conftest import Told

Write = Callable[..., Path]
Captured = pytest.CaptureFixture[str]
TARGET = "openai/gpt-oss-120b"
HEAD = "nebius/EAGLE3-gpt-oss-20b"


def test_a_profile_and_a_quantized_copy_have_the_drafts_of_their_target(told: Told, write: Write) -> None:
    file = write("target: {model: org/gpt-oss-120b-FP8-dynamic}\n")
    shown = json.loads(told(0, "drafts", file, "--format", "json")[0])
    assert (shown["version"], shown["target"]) == (1, "org/gpt-oss-120b-FP8-dynamic")
    models = {row["draft"]["model"] for row in shown["drafts"]}
    assert models == {None, *(draft.model for draft in drafts_for(TARGET))}
    assert all(row["draft"]["sources"] and not row["is_refused"] for row in shown["drafts"])


def test_a_target_without_drafts_is_told_what_needs_none(told: Told) -> None:
    text, _ = told(0, "drafts", "org/unknown")
    assert text.startswith("no published draft for org/unknown is in the catalogue")
    assert "`ngram` and `suffix` need no draft" in text


def test_a_chosen_draft_becomes_an_alternative_and_the_rest_of_the_file_stays(
    capsys: Captured, write: Write
) -> None:
    file = write("""\
        # ours
        target: {model: openai/gpt-oss-20b}
        speculation: {method: ngram, num_speculative_tokens: 4}  # for now
        alternatives:
          head: {method: suffix, num_speculative_tokens: 8}  # tried
        """)
    before = file.read_text()
    chosen = ["--write", HEAD, "--write", "amazon/gpt-oss-20b-p-eagle", "--write", "ngram"]
    assert _run(["drafts", str(file), *chosen]) == 0
    places = "`alternatives.EAGLE3-gpt-oss-20b`, `alternatives.gpt-oss-20b-p-eagle`, `alternatives.ngram`"
    assert places in " ".join(capsys.readouterr().err.split())
    after = file.read_text()
    assert all(line in after for line in before.splitlines())
    blocks = {name: dict(block.keys) for name, block in load_profile(file).alternatives.items()}
    assert blocks["head"] == {"method": "suffix", "num_speculative_tokens": 8}
    assert blocks["EAGLE3-gpt-oss-20b"] == {"method": "eagle3", "model": HEAD, "num_speculative_tokens": 6}
    assert blocks["gpt-oss-20b-p-eagle"]["parallel_drafting"] is True
    assert _run(["drafts", str(file), *chosen]) == 0 and file.read_text() == after
    assert _run(["lint", str(file)]) == 0


@pytest.mark.parametrize(
    ("target", "draft", "said"),
    [
        ("target: {modle: org/x}\n", [], "`modle`"),
        ("org/unknown\x1b[31m", [], "`org/unknown\\x1b[31m` is neither a model nor a profile"),
        ("openai/gpt-oss-20b", ["--write", HEAD], "`--write` can only change a profile file"),
        (
            "target: {model: openai/gpt-oss-20b}\nalternatives: {EAGLE3-gpt-oss-20b: {method: suffix}}\n",
            ["--write", HEAD],
            "has another alternative `EAGLE3-gpt-oss-20b`",
        ),
        ("target: {model: org/x}\n", ["--write", "org/y"], "`org/y` is not a known draft for this target"),
    ],
)
def test_what_cannot_be_read_or_written_is_an_error(
    told: Told, write: Write, target: str, draft: list[str], said: str
) -> None:
    file = write(target) if ":" in target else None
    assert said in " ".join(told(2, "drafts", str(file or target), *draft)[1].split())
    assert file is None or file.read_text() == target


def test_the_page_shows_what_the_command_prints(told: Told) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "drafts.md").read_text(encoding="utf-8")
    text, _ = told(0, "drafts", "Qwen/Qwen3-32B")
    assert f"$ specserve drafts Qwen/Qwen3-32B\n{text}```\n" in page
    assert all(len(line) <= 80 or "https://" in line for line in text.splitlines())
    command = "drafts meta-llama/Llama-3.3-70B-Instruct --assume 4xH100-80GB"
    table, _, rest = told(0, *command.split())[0].partition("\n\nnebius/EAGLE3-Llama-3.3-70B-Instruct\n")
    assert f"$ specserve {command}\n{table}\n…{rest[rest.index(chr(10) * 2 + 'tokens/step') :]}" in page
