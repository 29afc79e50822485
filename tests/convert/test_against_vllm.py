"""Command lines read by vLLM's own parser and by ours: the same values, the same refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.checks.run import examined
from specserve.convert.command import profile_of
from specserve.convert.invocation import invocation, shell_script
from specserve.convert.shelltext import commands
from specserve.convert.words import UNKNOWN
from specserve.diagnostics import Severity
from specserve.plan.arguments import problems
from specserve.plan.launch import launch
from specserve.plan.support import contains, installed, table

DATA = Path(__file__).parents[1] / "data"
PARSER = """
import contextlib, io, json, re, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
def plain(value):
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return re.sub("engine_id='[^']*'", "", repr(value))  # drawn anew each time
def read(argv):
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return {name: plain(value) for name, value in vars(parser.parse_args(argv)).items()}
        except (SystemExit, Exception):
            return None
answers = [read(argv) for argv in json.load(sys.stdin)]
print("\\n" + json.dumps(answers))
"""
ADDED = {
    "host",
    "port",
    "shutdown_timeout",
    "per_request_spec_decode_metrics",
    "model_tag",
    "model",
    "config",
}
"""What a plan says of its own, or elsewhere."""
MERGED = {
    "speculative_config",
    "spec_method",
    "spec_model",
    "spec_tokens",
    "served_model_name",
    "api_key",
    "hf_token",
}
MISREAD = {"SD102", "SD105"}


def read_by_vllm(lines: list[list[str]]) -> list[dict[str, Any] | None]:
    """What the installed vLLM makes of each command line; None where it refuses it."""
    child = subprocess.run(
        [sys.executable, "-c", PARSER],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    answers: list[dict[str, Any] | None] = json.loads(child.stdout.splitlines()[-1])
    return answers


def serve_lines() -> list[list[str]]:
    """The arguments of every `vllm serve` of both corpora that needs no other file."""
    lines = []
    for name in ("recipes.yaml", "failures.yaml"):
        for entry in yaml.safe_load((DATA / name).read_text(encoding="utf-8")):
            for command in commands(entry["text"], file="x") if "form" not in entry else ():
                start = None if shell_script(command) else invocation(command)
                words = [word.text for word in start.words] if start and start.engine == "vllm" else []
                if words and "--config" not in words and not any(UNKNOWN.search(word) for word in words):
                    lines.append(words)
    return lines


def model_first(words: list[str]) -> list[str]:
    """As `vllm serve` itself moves `--model`."""
    if "--model" not in words:
        return words
    at = words.index("--model")
    return [words[at + 1], *words[:at], *words[at + 2 :]]


def errors(words: list[str]) -> list[str]:
    """The codes of what lint refuses in a command line."""
    profile, findings = profile_of(["vllm", "serve", *words])
    found = examined(profile, problems=findings)[0] if profile else findings
    return [item.code for item in found if item.severity is Severity.ERROR]


def alike(value: object) -> list[object]:
    """A value, and for a path what a profile makes of it, which may be read from anywhere."""
    if not isinstance(value, str) or not value.startswith(("./", "~/")):
        return [value]
    return [value, str(Path(value).expanduser().resolve())]


@pytest.mark.vllm
def test_vllm_reads_a_command_and_its_plan_alike_and_refuses_what_we_refuse() -> None:
    found = installed()
    assert found is not None
    lines = serve_lines()
    known = table(found.version)
    plans: list[list[str]] = []
    refused = []
    inner = []
    for words in list(lines):
        profile, findings = profile_of(["vllm", "serve", *words])
        if profile and profile.vllm and not contains(profile.vllm, found.version):
            lines.remove(words)  # for a newer vLLM
            continue
        wrong = [item for item in problems(profile, known) if item.kind != "plug-in"] if profile else []
        if wrong:
            lines.remove(words)  # vLLM refuses some of these behind its parser
            inner += [words] if any(item.path.count(".") > 1 for item in wrong) else []
            continue
        refused.append({item.code for item in findings if item.severity is Severity.ERROR} & MISREAD)
        usable = profile is not None and not refused[-1]
        plans.append(
            list(launch(profile, table=known, platform="cuda").argv[2:]) if profile and usable else []
        )
    assert inner and read_by_vllm([model_first(words) for words in inner]) == [None] * len(inner)
    before = read_by_vllm([model_first(words) for words in lines])
    after = read_by_vllm(plans)
    compared = 0
    for words, codes, plan, raw, planned in zip(lines, refused, plans, before, after, strict=True):
        assert raw is None or not codes, words
        if raw is None or not plan:
            assert raw is not None or codes or errors(words), words
            continue
        assert planned is not None, plan
        compared += 1
        assert planned["model_tag"] in alike(raw["model_tag"]), words
        for name in raw.keys() - ADDED - MERGED:
            assert planned[name] in alike(raw[name]), (name, words)
        if raw["spec_tokens"] is not None and raw["speculative_config"]:
            continue  # vLLM refuses both behind its parser
        config = {key.replace("-", "_"): value for key, value in (raw["speculative_config"] or {}).items()}
        for name, value in (planned["speculative_config"] or {}).items():
            assert value in alike(config.get(name, value)) or name == "method", (name, words)
    assert compared >= 90
