"""`tune --write`: the choice into the file, or a refusal that leaves the file as it was."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.errors import FactError, UsageError
from specserve.measure.tune.write import refuse_unwritable, remark, write_choice
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
    assert "says so already" in write_choice(str(file), example())
    assert file.read_text() == once


def test_what_set_says_cannot_be_written(file: Path) -> None:
    with pytest.raises(UsageError, match="stands over it"):
        write_choice(str(file), example(), settings=["speculation.num_speculative_tokens=3"])
    assert file.read_text() == PROFILE


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        write_choice(str(tmp_path), example())


def test_a_choice_that_was_not_confirmed_is_called_predicted() -> None:
    assert "predicted" in remark(replace(example(), confirmed=()))
    assert "measured" in remark(example())


def test_what_does_not_read_back_as_the_choice_leaves_the_file_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.plan.writer.with_speculation", lambda text, *_, **__: text + "# more\n")
    with pytest.raises(FactError, match="in a way that `--write` cannot change"):
        write_choice(str(file), example())
    assert file.read_text() == PROFILE
    assert [path.name for path in file.parent.iterdir()] == ["p.yaml"]
