"""What stops a launch before it: models, memory and machine, and no bug of the check itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.prepare import check_launch
from specserve.errors import ProfileError
from specserve.plan.launch import LaunchOptions
from specserve.profile.load import load_profile
from specserve.report.findings import StderrNotices
from tests.checks.checkpoints import beside

Write = Callable[..., Path]
PAIR = """\
    target: {model: ./llama, max_model_len: 512}
    speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 3}
    alternatives:
      broken: {method: draft_model, model: ./nowhere, num_speculative_tokens: 3}
      longer: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 5}
"""


@pytest.fixture
def file(write: Write, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pair with an alternative whose draft is not there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = write(PAIR)
    beside(path.parent, PAIR)
    return str(path)


def check(file: str, alternative: str | None = None) -> None:
    """What `up` checks."""
    options = LaunchOptions(alternative=alternative)
    check_launch(load_profile(file, alternative=alternative), options, notices=StderrNotices())


def test_a_pair_that_agrees_may_start_whatever_its_alternatives_are_and_the_cost_of_its_draft_is_said(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(file)
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"the draft costs \d+ % of the KV cache: [\d,]+ tokens instead of [\d,]+, ", said)
    check(file, "longer")
    assert "the draft of `longer` costs " in capsys.readouterr().err


def test_the_variant_that_is_launched_is_the_one_that_is_judged(file: str) -> None:
    with pytest.raises(ProfileError) as caught:
        check(file, "broken")
    assert [finding.code for finding in caught.value.findings] == ["SD302", "SD290"]
    assert caught.value.exit_code == 1
    check(file, "baseline")


def test_a_path_that_is_not_here_stops_a_launch_here(write: Write) -> None:
    with pytest.raises(ProfileError) as caught:
        check(str(write("target: {model: /models/nobody-has-this}\n")))
    assert [finding.code for finding in caught.value.findings] == ["SD290"]


def test_what_could_not_be_read_is_said_and_stops_nothing(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    check(str(write("target: {model: some/model-that-nobody-has}")))
    assert "not checked: " in capsys.readouterr().err


@pytest.mark.parametrize("place", ["specserve.checks.collect.collect", "specserve.checks.run.run_rules"])
def test_a_bug_of_the_check_stops_nothing(
    place: str, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(place, lambda *_, **__: 1 / 0)
    check(file)
    assert "not checked: the check failed: ZeroDivisionError(" in capsys.readouterr().err


def test_a_comment_for_an_alternative_is_not_called_unused_by_a_launch(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{PAIR}# specserve: ignore[SD301]\n"
    beside(write(text).parent, PAIR)
    check(str(write(text)))
    assert "SD100" not in capsys.readouterr().err
