"""Each kind of key takes what means its type, and says what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.profile.load import load_profile

Write = Callable[..., Path]
Problems = Callable[..., list[str]]


def _text(path: str, text: str) -> str:
    """A profile with one value more."""
    section, _, key = path.partition(".")
    target = f", {key}: {text}" if section == "target" else ""
    return f"target: {{model: x{target}}}\n" + (f"{section}: {{{key}: {text}}}\n" if not target else "")


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("target.revision", "plain", "plain"), ("target.revision", "'true'", "true"),
        ("target.revision", "0123456", "0123456"), ("target.revision", "1e10", "1e10"),
        ("target.revision", f"{'1234' * 9}78ab", f"{'1234' * 9}78ab"), ("target.revision", "1" * 40, "1" * 40),
        ("target.revision", "12:30:45", "12:30:45"), ("target.revision", "2024-01-01", "2024-01-01"),
        ("hardware.count", "12", 12), ("hardware.count", "1_000", 1000), ("hardware.count", "'4k'", 4000),
        ("hardware.count", "1.5k", 1500), ("hardware.count", "2T", 2 << 40), ("server.port", "", 8000),
        ("target.max_model_len", "32k", 32_000), ("target.max_model_len", "32K", 32_768),
        ("target.max_model_len", "Auto", -1), ("target.max_model_len", "-1", -1),
        ("server.stall_timeout_s", "1e3", 1000.0), ("server.stall_timeout_s", "2", 2.0),
        ("engine.a", "yes", True), ("engine.a", "off", False), ("engine.a", "010", "010"),
        ("engine.a", "[1, a, 1e-3, null]", (1, "a", 0.001, None)),
        ("engine.a", "{1: a, null: b}", {"1": "a", "null": "b"}),
        ("hardware.devices", "[3, GPU-8d5e]", (3, "GPU-8d5e")),
    ],
)  # fmt: skip
def test_it_is_read_as_it_is_meant(write: Write, path: str, text: str, value: Any) -> None:
    profile = load_profile(write(_text(path, text)))
    section, _, key = path.partition(".")
    found = profile.engine[key] if section == "engine" else getattr(getattr(profile, section), key)

    assert (found, type(found) is type(value) or isinstance(value, dict)) == (value, True)


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("target.dtype", "true", "must be a text; found `true`"),
        ("target.dtype", "[a]", "must be a text; found a list"),
        ("target.dtype", "''", "must be a text; found the text ``"),
        ("target.dtype", '"a\\e[31m"', "must be a text; found the text `a\\x1b[31m`"),
        ("engine.a", '"a\\x9bm"',
         "must be a finite number, or a text without control characters; found the text `a\\x9bm`"),
        ("engine.a", ".nan", "must be a finite number, or a text without control characters; found `.nan`"),
        ("hardware.count", "many", "must be an integer of at least 1; found `many`"),
        ("hardware.count", "1.5K", "must be an integer of at least 1; found `1.5K`"),
        ("hardware.count", "true", "must be an integer of at least 1; found `true`"),
        ("hardware.count", "010", "must be an integer of at least 1; found `010`"),
        ("hardware.count", "'4'", "must be an integer of at least 1; found the text `4`"),
        ("server.port", "70k", "must be an integer from 0 to 65535; found `70k`"),
        ("target.max_model_len", "0", "must be `auto` or a number of at least 1; found `0`"),
        ("target.max_model_len", "-3", "must be `auto` or a number of at least 1; found `-3`"),
        ("server.stall_timeout_s", ".inf", "must be a number of at least 1; found `.inf`"),
        ("server.stall_timeout_s", "1e999", "must be a number of at least 1; found `1e999`"),
        ("server.host", "a b", "must be a host name or an address, such as `0.0.0.0` or `::1`; found `a b`"),
        ("hardware.devices", "3", "must be a list, each item an index or a UUID; found `3`"),
    ],
)  # fmt: skip
def test_anything_else_is_told_in_one_sentence(problems: Problems, path: str, text: str, told: str) -> None:
    (line,) = problems(_text(path, text))
    assert line.partition(" SD006 ")[2] == f"`{path}` {told}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("engine: {b: [1, {c: .nan}]}", ["engine.b[1].c"]),
        ("hardware: {devices: [0, -1, null, [1]]}", [f"hardware.devices[{at}]" for at in (1, 2, 3)]),
        ("speculation: {method: suffix, num_speculative_tokens_per_batch_size: [[1, 2], [1, x, -3], 7]}",
         [f"speculation.num_speculative_tokens_per_batch_size[{at}]" for at in ("0", "1][1", "1][2", "2")]),
        ("expect: [{prompt_tokens: {p50: x, p99: -1}}, null]",
         ["expect[0].prompt_tokens.p50", "expect[0].prompt_tokens.p99", "expect[1]"]),
    ],
)  # fmt: skip
def test_every_wrong_item_of_a_collection_is_told_at_its_own_place(
    problems: Problems, text: str, told: list[str]
) -> None:
    lines = problems(f"target: {{model: x}}\n{text}\n")
    assert [line.partition("`")[2].partition("`")[0] for line in lines] == told
    assert len({line.partition(" ")[0] for line in lines}) == len(lines)
