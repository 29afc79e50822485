"""Lines about the Hub: whether there is a token and where, never what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.doctor.limits import endpoint, hub_lines, token_file

SECRET = "hf_" + "Abc1De2Fg3" * 3


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HF_HOME": str(tmp_path)}


def told(environ: dict[str, str]) -> list[tuple[str, str]]:
    found = list(hub_lines(environ))
    shown = " ".join(f"{line.text} {line.fix}" for line in found)
    assert not [at for at in range(len(SECRET) - 4) if SECRET[at : at + 5] in shown]
    return [(line.state, line.text) for line in found]


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"])
def test_a_token_of_the_environment_is_told_by_its_variable(name: str, home: dict[str, str]) -> None:
    assert told({**home, name: SECRET}) == [("ok", f"present, from {name}")]


def test_a_token_in_a_file_is_told_by_its_file(home: dict[str, str]) -> None:
    file = token_file(home)
    file.write_text(SECRET)
    file.chmod(0o600)
    assert told(home) == [("ok", f"present, in {file}")]
    assert told({**home, "HF_TOKEN": SECRET}) == [("ok", "present, from HF_TOKEN")]


def test_a_token_that_others_may_read_is_a_note_with_its_fix(home: dict[str, str]) -> None:
    file = token_file(home)
    file.write_text(SECRET)
    file.chmod(0o644)
    (line,) = hub_lines(home)
    assert (line.state, line.fix) == ("note", f"`chmod 600 {file}`")


@pytest.mark.parametrize("content", ["", " \n"])
def test_no_token_and_an_empty_one_are_a_note(content: str, home: dict[str, str]) -> None:
    token_file(home).write_text(content)
    ((state, text),) = told({**home, "HF_TOKEN": content})
    assert state == "note" and text.startswith("none:")


def test_offline_no_token_is_wanted(home: dict[str, str]) -> None:
    ((state, text),) = told({**home, "HF_HUB_OFFLINE": "1"})
    assert state == "ok" and text.startswith("is not asked (HF_HUB_OFFLINE)")


def test_a_token_that_is_not_sent_is_a_note(home: dict[str, str]) -> None:
    ((state, text),) = told({**home, "HF_TOKEN": SECRET, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"})
    assert state == "note" and "HF_HUB_DISABLE_IMPLICIT_TOKEN" in text


@pytest.mark.parametrize(
    ("address", "state", "shown"),
    [
        ("https://hub.example", "ok", "HF_ENDPOINT=https://hub.example"),
        (
            f"https://me:{SECRET}@hub.example:8443/x?token={SECRET}#{SECRET}",
            "ok",
            "https://hub.example:8443/x",
        ),
        ("http://hub.example", "note", "the token goes there unencrypted"),
        ("http://127.0.0.1:9", "ok", "HF_ENDPOINT=http://127.0.0.1:9"),
        ("http://[::1]:9", "ok", "HF_ENDPOINT=http://[::1]:9"),
        (f"ftp://{SECRET}", "note", "HF_ENDPOINT is not an address"),
        (f"{SECRET}", "note", "HF_ENDPOINT is not an address"),
        (f"https://h:{SECRET}", "note", "HF_ENDPOINT is not an address"),
    ],
)
def test_another_hub_is_told_without_what_its_address_may_hide(
    address: str, state: str, shown: str, home: dict[str, str]
) -> None:
    _, (found, text) = told({**home, "HF_TOKEN": SECRET, "HF_ENDPOINT": address})
    assert found == state and shown in text


@given(st.text(), st.text(alphabet="abc:@/?#[]%", max_size=20))
def test_an_address_is_shown_without_a_user_or_not_at_all(text: str, rest: str) -> None:
    assert endpoint(text) is None or text.strip()
    shown = endpoint(f"https://user:secret@{rest}")
    assert shown is None or ("user" not in shown and "secret" not in shown)
