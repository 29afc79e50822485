"""Whatever a profile's texts are, vLLM gets them as values: never as options, variables, or commands of a shell."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.cli.app import _run as run
from specserve.cli.up import default_name
from specserve.convert.arguments import option_strings
from specserve.errors import ProfileError, SpecserveError
from specserve.plan.launch import launch
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.load import load_profile
from specserve.serve.records import NAME
from specserve.vllm.versions import table

Captured = pytest.CaptureFixture[str]
TABLE = table("0.32")
NASTY = [
    "--help", "-x", "-", "--", "--config=/tmp/x", "--api-key", "--port", "-tp=8", "@file", "$(touch PWNED)",
    "`touch PWNED`", "'; touch PWNED; '", '"; touch PWNED; "', "a\nb", "a\n--help", "a\0b", "a\rb", "\x1b[2J",
    "a\u2028b", "a\u2029--help", "a\x85b", "\u202egnp", "${HOME}", "a b", "a=b", "--a=--b", "*", "~", "\\", "ü",
    "🙂", "#", "!", "{", "[", "%s", "None", ".", "..", "../x", "~/x",
]  # fmt: skip
TEXTS = st.one_of(st.sampled_from(NASTY), st.text(min_size=1, max_size=12))
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "target.model": lambda text: {"target": {"model": text}},
    "target.tokenizer": lambda text: {"target": {"model": "m", "tokenizer": text}},
    "target.revision": lambda text: {"target": {"model": "m", "revision": text}},
    "speculation.model": lambda text: {
        "speculation": {"method": "draft_model", "model": text, "num_speculative_tokens": 2}
    },
    "server.host": lambda text: {"server": {"host": text}},
    "server.served_model_name": lambda text: {"server": {"served_model_name": text}},
    "server.api_key_env": lambda text: {"server": {"api_key_env": text}},
    "frontend.chat_template": lambda text: {"frontend": {"chat_template": text}},
    "frontend.lora_modules": lambda text: {"frontend": {"lora_modules": [f"{text}=p", "b=q"]}},
    "frontend.middleware": lambda text: {"frontend": {"middleware": [text, text]}},
    "frontend.allowed_origins": lambda text: {"frontend": {"allowed_origins": [text]}},
    "engine.download_dir": lambda text: {"engine": {"download_dir": text}},
    "engine.hf_overrides": lambda text: {"engine": {"hf_overrides": {text: text}}},
    "engine.key": lambda text: {"engine": {text: "x"}},
    "frontend.key": lambda text: {"frontend": {text: "x"}},
    "env.value": lambda text: {"env": {"VLLM_CACHE_ROOT": text}},
    "env.name": lambda text: {"env": {text: "x"}},
    "name": lambda text: {"name": text},
    "alternatives": lambda text: {"alternatives": {text: {"method": "ngram", "num_speculative_tokens": 2}}},
}

NAMES = {"target.model", "target.tokenizer", "target.revision", "speculation.model", "server.host",
         "server.served_model_name", "hardware.accelerator", "hardware.devices", "name"}  # fmt: skip


def plan_of(content: dict[str, Any], folder: Path) -> LaunchPlan:
    """The launch of a profile. Raises SpecserveError where it is refused."""
    file = folder / "p.yaml"
    text = json.dumps({"target": {"model": "m"}, **content}, ensure_ascii=False)
    # YAML has no pairs of surrogates, and folds what ends a line
    text = "".join(mark if mark.isprintable() or mark == "\n" else f"\\U{ord(mark):08x}" for mark in text)
    file.write_text(text, encoding="utf-8")
    return launch(load_profile(str(file)), table=TABLE, platform="cuda")


def words_read(argv: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """Options with their values, as vLLM's parser takes a command line apart: what begins with a dash is an option."""
    options = option_strings(TABLE)
    read: list[tuple[str, list[str]]] = [("model", [])]
    for word in argv[2:]:
        if word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit():
            name, equals, value = word.partition("=")
            assert name in options, f"{word!r} is an option that vLLM does not have"
            read.append((name, [value] if equals else []))
        else:
            read[-1][1].append(word)
    return read


def seen_from(folder: Path, text: str) -> str:
    """The text, or the path that it is by its look, made absolute."""
    is_path = re.match(r"~/|\.{1,2}(/|\Z)", text)
    return os.path.normpath(folder / os.path.expanduser(text)) if is_path else text  # noqa: PTH111


def texts_in(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in texts_in(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts_in(item)]
    return [value] if isinstance(value, str) else []


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(sorted(PLACES)), text=TEXTS)
def test_any_text_is_refused_or_becomes_the_one_value_that_it_was_meant_for(
    place: str, text: str, tmp_path: Path
) -> None:
    try:
        plan = plan_of(PLACES[place](text), tmp_path)
    except SpecserveError:
        return
    harmless = plan_of({} if place in ("engine.key", "frontend.key") else PLACES[place]("x"), tmp_path)
    read = words_read(plan.argv)
    asked = {name for name, _ in words_read(harmless.argv)}
    assert {name for name, _ in read} <= asked, "an option that nobody asked for"
    assert len(read) == len({name for name, _ in read}) or place == "frontend.middleware"
    assert len(read[0][1]) == 1, "one model"
    assert not any("\0" in word for word in plan.argv)
    assert not any("\0" in str(value) or "=" in name for name, value in plan.env.items())
    if place == "target.model":
        assert read[0][1] == [seen_from(tmp_path, text)]
    elif place in (
        "target.tokenizer",
        "server.served_model_name",
        "frontend.chat_template",
        "engine.download_dir",
    ):
        option = "--" + place.partition(".")[2].replace("_", "-")
        shown = text if place.startswith("server") else seen_from(tmp_path, text)
        assert dict(read)[option] == [shown]
    elif place == "engine.hf_overrides":
        shown = seen_from(tmp_path, text)
        assert texts_in(json.loads(dict(read)["--hf-overrides"][0])) == [text, shown]
    elif place == "env.value":
        assert plan.env["VLLM_CACHE_ROOT"] == text


@pytest.mark.parametrize("place", ["target.model", "target.tokenizer", "speculation.model"])
@pytest.mark.parametrize("text", [*(text for text in NASTY if text.startswith("-")), "--local-dir=/etc"])
def test_a_model_that_looks_like_an_option_is_refused_with_its_place(
    text: str, place: str, tmp_path: Path
) -> None:
    with pytest.raises(ProfileError) as raised:
        plan_of(PLACES[place](text), tmp_path)
    (finding,) = raised.value.findings
    assert finding.message.startswith(f"`{place}` must be a name or a path; found ")


@pytest.mark.parametrize("place", [*sorted(PLACES), "hardware.accelerator", "hardware.devices"])
def test_control_characters_are_refused_everywhere_and_breaks_of_lines_in_names(
    place: str, tmp_path: Path
) -> None:
    made: dict[str, Callable[[str], dict[str, Any]]] = {
        **PLACES,
        "hardware.accelerator": lambda text: {"hardware": {"accelerator": text}},
        "hardware.devices": lambda text: {"hardware": {"devices": [text]}},
    }
    marks = "" if place == "engine.hf_overrides" else "\0\x1b\r"
    for mark in marks + ("\n\t\x85\u2028" if place in NAMES else ""):
        with pytest.raises(SpecserveError):
            plan_of(made[place](f"a{mark}b"), tmp_path)


HOSTS = [
    "127.0.0.1",
    "::",
    "fe80::1%eth0",
    "::ffff:10.0.0.1",
    "gpu-3.example.org",
    "my_host",
    "localhost.",
    "0",
]
NO_HOSTS = [
    'h"\nExecStartPre=+/usr/bin/touch /x\nExecStartPost=/bin/echo "', "'x\\x27; cmd; \\x27'", "{leader}", "$HOME", "%h",
    "a b", "a/b", "a:80", "[::1]", "fe80::1%$(id)", "1:2:3", "a..b", "-x", "a\n", "http://a", "a" * 254,
]  # fmt: skip


@pytest.mark.parametrize("host", [*HOSTS, *NO_HOSTS])
def test_a_host_is_a_name_or_an_address_and_nothing_else(host: str, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "p.yaml"
    server = {"host": host, "api_key_env": "MY_KEY"}
    file.write_text(json.dumps({"target": {"model": "org/m"}, "server": server}), encoding="utf-8")
    is_taken = host in HOSTS
    assert run(["lint", str(file)]) == (0 if is_taken else 1)
    assert ("SD006" in capsys.readouterr().out) is not is_taken
    assert run(["render", str(file), "--to", "systemd"]) == (0 if is_taken else 2)
    assert ("ExecStart=" in capsys.readouterr().out) is is_taken


@settings(max_examples=20)
@given(st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True), st.none() | st.text(max_size=9))
def test_the_name_of_a_detached_server_is_one_whatever_its_variant_is_called(
    name: str, variant: str | None
) -> None:
    assert NAME.fullmatch(default_name(name, variant=variant))
