"""`tune --write`: the choice into the file, or a refusal that leaves the file as it was."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.errors import FactError, UsageError
from specserve.measure.tune.result import refuse_unwritable, remark, write_choice
from specserve.profile.load import load_profile

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from tune_result import example

PROFILE = """\
# a pair
target: {model: big}
speculation:
  method: draft_model   # what else
  model: small
  num_speculative_tokens: 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "p.yaml"
    made.write_text(PROFILE, encoding="utf-8")
    made.chmod(0o640)
    return made


def test_the_choice_is_written_with_when_where_and_what_was_measured(file: Path) -> None:
    result = example()
    write_choice(str(file), result)
    after = file.read_text()
    assert "# specserve tune: 2026-11-21, cpu, vLLM 0.32.0+cpu: measured" in after
    assert "method: draft_model   # what else" in after
    found = load_profile(str(file)).speculation
    assert found is not None
    assert found.num_speculative_tokens == result.choice.speculation["num_speculative_tokens"]  # type: ignore[index]
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["p.yaml"]


def test_without_speculation_the_block_becomes_a_comment(file: Path) -> None:
    write_choice(str(file), example(speculates=False))
    assert load_profile(str(file)).speculation is None
    assert "#   num_speculative_tokens: 5\n" in file.read_text()


@pytest.mark.parametrize("arguments", [("none.yaml", ()), (None, ("speculation.method=ngram",))])
def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    file: Path, arguments: tuple[str | None, tuple[str, ...]]
) -> None:
    name, settings = arguments
    with pytest.raises(UsageError):
        refuse_unwritable(name or str(file), settings=settings)


def test_written_twice_it_says_so_already(file: Path) -> None:
    write_choice(str(file), example())
    once = file.read_text()
    assert "already has this `speculation`" in write_choice(str(file), example())
    assert file.read_text() == once


def test_what_set_says_cannot_be_written(file: Path) -> None:
    with pytest.raises(UsageError, match="cannot be combined"):
        write_choice(str(file), example(), settings=["speculation.num_speculative_tokens=3"])
    assert file.read_text() == PROFILE


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a file"):
        write_choice(str(tmp_path), example())


def test_a_choice_that_was_not_confirmed_is_called_predicted() -> None:
    assert "predicted" in remark(replace(example(), confirmed=()))
    assert "measured" in remark(example())


def test_what_does_not_read_back_as_the_choice_leaves_the_file_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.profile.writer.with_section", lambda text, *_, **__: text + "# more\n")
    with pytest.raises(FactError, match="in a way that `--write` cannot change"):
        write_choice(str(file), example())
    assert file.read_text() == PROFILE
    assert [path.name for path in file.parent.iterdir()] == ["p.yaml"]


def test_a_second_writing_of_one_choice_changes_nothing(file: Path) -> None:
    write_choice(str(file), example())
    once = file.read_bytes()
    assert write_choice(str(file), example()).endswith("already has this `speculation`")
    assert file.read_bytes() == once


def test_every_line_that_is_not_the_choice_stays_as_it_was(file: Path) -> None:
    before = "# a pair\ntarget: {model:   big}\n\nspeculation:\n  method: draft_model\n  model:    small\n"
    tail = "\n# about it\nenv: {A: 'b',  C: \"d\"}"
    file.write_text(f"{before}  num_speculative_tokens: 7\n{tail}")
    write_choice(str(file), example())
    after = file.read_text()
    assert after.startswith("# a pair\ntarget: {model:   big}\n\n# specserve tune:")
    assert after.endswith(f"{tail}\n") and "num_speculative_tokens: 7" not in after


def test_a_profile_that_cannot_be_changed_stays_as_it_is(file: Path) -> None:
    text = "{target: {model: big}, speculation: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 2}}"
    file.write_text(text)
    with pytest.raises(FactError, match="cannot change"):
        write_choice(str(file), example())
    assert file.read_text() == text
    assert list(file.parent.iterdir()) == [file]
