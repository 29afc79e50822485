"""Writes docs/reference and the schema of a profile from the program's tables; --check: says what is stale."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specserve.cli.commands import COMMANDS, LazyGroup
from specserve.profile.schema import SECTIONS, defaults_of
from specserve.profile.validate import BLOCK_KEYS, ELSEWHERE, EVERY_KEY, SCHEMA, words
from specserve.vllm.speculation import METHODS

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_WRITTEN = "<!-- Written by scripts/gen_reference.py: change what it reads, then run it. -->"
_UNITS = {"_s": "seconds", "_ms": "milliseconds", "_tokens": "tokens", "_len": "tokens"}
EXAMPLES: Mapping[str, str] = {
    "": """\
schema: 1
name: llama70b
vllm: ">=0.32,<0.34"
target: {model: meta-llama/Llama-3.1-70B-Instruct}
speculation: {method: ngram, num_speculative_tokens: 4}
alternatives:
  suffix: {method: suffix, num_speculative_tokens: 8}
engine: {gpu_memory_utilization: 0.90, max_num_seqs: 64}
frontend: {tool_call_parser: llama3_json, enable_auto_tool_choice: true}
server: {port: 8001}
hardware: {accelerator: H100-80GB, count: 4}
expect:
  - {workload: chat, concurrency: 16, min_speedup: 1.3}
env: {VLLM_LOGGING_LEVEL: WARNING}
""",
    "extends": """\
extends: llama70b.yaml
server: {port: 8002}
""",
    "target": """\
target:
  model: meta-llama/Llama-3.1-70B-Instruct
  revision: 1605565b47bb9346c5515c34102e054115b4f98b
  tokenizer: meta-llama/Llama-3.1-70B-Instruct
  dtype: bfloat16
  quantization: fp8
  tensor_parallel_size: 4
  pipeline_parallel_size: 1
  max_model_len: 32K
""",
    "server": """\
target: {model: meta-llama/Llama-3.1-8B-Instruct}
server:
  host: 0.0.0.0
  port: 8000
  served_model_name: llama
  api_key_env: LLAMA_KEY
  stall_timeout_s: 900
  shutdown_timeout_s: 60
""",
    "hardware": """\
target: {model: meta-llama/Llama-3.1-70B-Instruct, tensor_parallel_size: 2}
hardware:
  accelerator: H100-80GB
  count: 2
  nodes: 1
  devices: [2, 3]
""",
    "expect": """\
target: {model: meta-llama/Llama-3.1-8B-Instruct}
speculation: {method: ngram, num_speculative_tokens: 4}
expect:
  - workload: chat
    concurrency: 16
    temperature: 0.7
    prompt_tokens: {p50: 800, p95: 4000}
    output_tokens: {p50: 200, p95: 900}
    min_speedup: 1.3
    min_mean_acceptance_length: 2.2
    min_acceptance_rate: 0.4
    max_ttft_p99_ms: 800
    max_tpot_p99_ms: 40
""",
}
"""A profile for each section, with all of its keys."""
_ABOUT = {
    "target": "The model whose output you want. The keys have vLLM's names and vLLM's meaning.",
    "server": "Where the server listens, how clients name the model, and how long specserve waits.",
    "hardware": """\
The machine that the profile is for. `check`, `plan` and `render` judge and plan for it, even on a laptop; `up` uses
`devices` on this host. Without this section the machine at hand counts.""",
    "expect": """\
A list of promises. Each holds at every operating point that it matches: what it does not name matches everything, and
a promise with `concurrency` is for up to that many requests. `bench` judges them and exits with 1 if a promise is
missed by its whole confidence interval; `watch` judges a running server by those that name neither workload nor
temperature.""",
}
_PROFILE = f"""\
# The profile

A profile is one YAML file. `specserve schema` prints the same as a JSON Schema for editors. Numbers of tokens may be
written `32K` or `1M` (times 1,024 or 1,024²) and `32k` or `1m` (times 1,000 or 1,000²).

{_WRITTEN}

## Sections
"""
_EXTENDS = (
    "`extends` names a parent profile. The values of both are merged key by key; those of the child win:"
)
_SPECULATION = """\
## `speculation` and `alternatives`

One block of vLLM's `speculative_config`. `speculation: null` means no speculation. `alternatives` holds further
blocks by name; `--alternative NAME` uses one of them instead of `speculation`, and `bench` compares them.

| method | needs | keys of its own |
|---|---|---|"""
_REST = """
## `engine`, `frontend` and `env`

`engine` takes every other argument of vLLM's engine by its Python name (`max_num_seqs`); `frontend` has those of its
server. Names are checked against the tables of every vLLM version in the profile's range. An argument that has a key
of its own (`model`, `host`, `speculative_config`, …) is refused there, and the message names that key. `env` sets
variables of the server's process; the values are texts. Keys and tokens never belong in a profile:
`server.api_key_env` names the variable that holds the key.

## Comments that silence a finding

`# specserve: ignore[SD104] reason` on a line of the value, or of its section, hides that finding. A comment that
hides nothing is a finding itself ([SD100](../rules.md#sd100-unused-ignore))."""
_COMMANDS = f"""\
# Commands

`specserve COMMAND --help` says the same on the terminal. `specserve --install-completion` completes names and
options.

{_WRITTEN}

| command | does |
|---|---|"""


def profile_page() -> str:
    """The reference of a profile: every key of every section."""
    schema = SCHEMA
    lines = [_PROFILE, *_table(schema), "", *_example(""), "", _EXTENDS, "", *_example("extends")]
    for name, about in _ABOUT.items():
        section = schema["$defs"]["expectation" if name == "expect" else name]
        lines += ["", f"## `{name}`", "", about, "", *_table(section), "", *_example(name)]
    lines += ["", _SPECULATION]
    shared = set.intersection(*(set(keys) for keys in BLOCK_KEYS.values()))
    with_draft = (
        set.intersection(*(set(BLOCK_KEYS[name]) for name, known in METHODS.items() if known.draft != "text"))
        - shared
    )
    for method, known in METHODS.items():
        needs, keys = known.needs, BLOCK_KEYS[method]
        own = [name for name in keys if name not in shared | with_draft]
        if with_draft <= set(keys):
            own.insert(0, "those of a draft")
        takes = ", ".join(name if " " in name else f"`{name}`" for name in own)
        lines.append(
            f"| `{method}` | {', '.join(f'`{name}`' for name in needs) or 'nothing more'} | {takes or 'none'} |"
        )
    every = schema["$defs"]["speculation"]
    for title, names in (
        ("Keys of every method", shared),
        ("Keys of a draft", with_draft),
        ("Keys of single methods", set(EVERY_KEY) - shared - with_draft),
    ):
        lines += ["", f"### {title}", "", *_table(every, only=names)]
    lines.append(_REST)
    return "\n".join(lines) + "\n"


def _table(section: Mapping[str, Any], *, only: Collection[str] | None = None) -> list[str]:
    rows = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for name, key in section["properties"].items():
        default = "vLLM's" if "model" in section["properties"] else "none"
        default = f"`{key['default']}`" if "default" in key else default
        if name in section.get("x-required", ()):
            default = "required"
        unit = next((f", in {unit}" for end, unit in _UNITS.items() if name.endswith(end)), "")
        if only is None or name in only:
            rows.append(f"| `{name}` | {words(key)}{unit} | {default} | {key['description']} |")
    return [row.replace("[[", "\\[\\[") for row in rows]


def _example(name: str) -> list[str]:
    return ["```yaml", *EXAMPLES[name].rstrip().split("\n"), "```"]


def commands_page() -> str:
    """The reference of the commands: what each does, takes and returns."""
    commands = {name: _command(name) for name in COMMANDS}
    lines = [_COMMANDS]
    lines += [f"| [`{name}`](#{name}) | {_summary(command)} |" for name, command in commands.items()]
    for name, command in commands.items():
        lines += ["", f"## {name}", "", *_about(name, command)]
    return "\n".join(lines) + "\n"


def _command(name: str) -> Any:
    return LazyGroup().get_command(None, name)


def _summary(command: Any) -> str:
    return _plain(str(command.help).split("\n", 1)[0])


def _about(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    text, _, examples = str(command.help).partition("\b")
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ("```", f"specserve {name} {usage}".rstrip(), "```", "", _plain(text.strip()))
    if examples.strip():
        yield from ("", "```", *[line.strip() for line in examples.strip().split("\n")], "```")
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        rows = [each.get_help_record(context) for each in command.params if each.param_type_name == kind]
        yield from ("", f"| {title} | |", "|---|---|") if any(rows) else ()
        for spelling, text in filter(None, rows):
            yield f"| `{spelling.replace('|', chr(92) + '|')}` | {_plain(' '.join(text.split()))} |"


def _plain(text: str) -> str:
    """Paragraphs as markdown: `<…>` is no element of a page."""
    return (
        re.sub(r"(?<!\n)\n(?!\n)\s*", " ", text).replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")
    )


_JSON = f"""\
# JSON output

With `--format json`, a command prints one JSON object; `watch` prints one per line. Each has a `version`, which
changes only if a key goes away or changes its meaning; new keys may come at any time. These tables are made from real
outputs.

`[]` stands for each item of a list, `{{}}` for each value of an object whose keys are names. Any value may be null, if
it is not known. `specserve schema` prints the JSON Schema of a profile, which is the only file that you write.

{_WRITTEN}
"""
_GOLDEN = FOLDER.parents[1] / "tests" / "golden"
_OUTPUTS: Mapping[str, str] = {
    "`lint` and `check`": "report/findings.json",
    "`plan`": "plan/llama8b-eagle3-schedule.json",
    "`diff`": "report/diff.json",
    "`upgrade`": "report/upgrade.json",
    "`verify`": "report/verify-wrong.json",
    "`bench`, and its `result.json`": "report/bench.json",
}
_BY_NAME = {
    "engine_kwargs",
    "env",
    "versions",
    "settings",
    "environment",
    "speculative_config",
    "arguments",
    "launch",
    "promises",
}
"""Objects whose keys are names, not fields."""


def json_page() -> str:
    """The reference of what commands print as JSON: every key of a real output with its type."""
    lines = [_JSON]
    for title, file in _OUTPUTS.items():
        rows: dict[str, set[str]] = {}
        for path, kind in _fields(json.loads((_GOLDEN / file).read_text(encoding="utf-8"))):
            rows.setdefault(path, set()).add(kind)
        lines += [f"## {title}", "", "| key | type |", "|---|---|"]
        for path, kinds in rows.items():
            words = " or ".join(sorted(kinds - {""})) or "null here"
            lines += [f"| `{path}` | {words} |"] if words != "object" or not path.endswith("[]") else []
        lines.append("")
    return "\n".join(lines)


_KINDS = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", dict: "object"}


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each place in a JSON value with its type; the items of a list are one place."""
    if path and value is not None:
        yield path, _KINDS[type(value)]
    if isinstance(value, dict):
        by_name = path.rpartition(".")[2] in _BY_NAME
        for name, child in value.items():
            yield from _fields(child, f"{path}.{{}}" if by_name else f"{path}.{name}".lstrip("."))
    for child in value if isinstance(value, list) else ():
        yield from _fields(child, f"{path}[]")
    if value is None:
        yield path, ""


def keys_file() -> str:
    """profile/keys.json with what follows from the rest: defaults, and the keys of each method."""
    schema = json.loads(json.dumps(SCHEMA))
    for name, section in SECTIONS.items():
        for key, default in defaults_of(section).items():
            if default not in (None, ""):
                schema["$defs"][name]["properties"][key]["default"] = default
    for name in ("engine", "frontend"):
        schema["properties"][name]["propertyNames"] = {"not": {"enum": sorted(ELSEWHERE)}}
    block = schema["$defs"]["speculation"]
    block["properties"]["method"]["enum"] = list(METHODS)
    block["allOf"] = [
        {
            "if": {"properties": {"method": {"const": method}}, "required": ["method"]},
            "then": {
                "description": f"needs {', '.join(known.needs) or 'no more keys'}",
                "propertyNames": {"enum": sorted(BLOCK_KEYS[method])},
            },
        }
        for method, known in METHODS.items()
    ]
    return _lines(schema) + "\n"


def _lines(value: Any, indent: int = 0) -> str:
    """JSON with one line for each key of a profile."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or "$ref" in value or (len(text) < 500 and "properties" not in value):
        return text
    pad = "\n" + " " * (indent + 1)
    parts = (f"{json.dumps(key)}: {_lines(item, indent + 1)}" for key, item in value.items())
    return f"{{{pad}{f',{pad}'.join(parts)}{pad[:-1]}}}"


ROOT = FOLDER.parents[1]
PAGES = {
    ROOT / "specserve" / "profile" / "keys.json": keys_file,
    ROOT / "configs" / "profile.schema.json": keys_file,
    FOLDER / "profile.md": profile_page,
    FOLDER / "commands.md": commands_page,
    FOLDER / "json.md": json_page,
}


def main(arguments: Iterable[str]) -> int:
    """Exit code 1 with --check if a page is stale."""
    stale = []
    for file, made in PAGES.items():
        text = made()
        if "--check" in arguments:
            stale += [file.name] if not file.is_file() or file.read_text(encoding="utf-8") != text else []
        else:
            file.write_text(text, encoding="utf-8")
    print(f"stale: {', '.join(stale)}; run scripts/gen_reference.py" if stale else f"{len(PAGES)} pages")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
