"""The YAML file of `vllm serve --config FILE`: its arguments under those of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from specserve.convert.given import Setting
from specserve.convert.options import known_options
from specserve.convert.values import NotJson, json_node, wrong_value
from specserve.convert.words import Word
from specserve.diagnostics import Finding, Severity
from specserve.plan.support import known_versions, table
from specserve.profile.problems import quoted
from specserve.profile.source import MAX_BYTES, parse
from specserve.profile.tree import Node


def with_file(given: Mapping[str, Setting], *, folder: Path, found: list[Finding]) -> dict[str, Setting]:
    """The settings with those of the file that `--config` names, where it can be read.

    vLLM 0.26 to 0.33 read the file only where its name is a word of its own: `--config=FILE` is parsed, and then
    ignored (`_pull_args_from_config`, vllm/utils/argparse_utils.py).
    """
    settings = dict(given)
    config = settings.pop("config", None)
    if config is None or not isinstance(config.node.value, str):
        return settings
    name = config.node.value
    if config.inline:
        text = "vLLM ignores `--config=FILE`: it reads `--config FILE` only"
        found.append(_finding(config, text, help="write it as two words"))
        return settings
    try:
        with (folder / name).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        text = f"cannot read the arguments in {quoted(name)}: {reason}"
        found.append(_finding(config, text, help="put the arguments on the command line"))
        return settings
    tree, problems = parse(data, file=name)
    found += problems
    return {**_settings(tree, found), **settings} if tree else settings


def _finding(config: Setting, message: str, *, help: str) -> Finding:
    return Finding("SD103", "misplaced-argument", Severity.ERROR, message, config.node.span, help=help)


def _settings(tree: Node, found: list[Finding]) -> dict[str, Setting]:
    """The keys of the file as settings: `tensor-parallel-size: 4` is `--tensor-parallel-size 4`."""
    options = known_options([table(version) for version in known_versions()])
    settings: dict[str, Setting] = {}
    for key, node in (tree.mapping or {}).items():
        argument, negative = options.get("--" + key.replace("_", "-"), (None, False))
        name = argument.name if argument else key.replace("-", "_")
        value = replace(node, value=not node.value) if negative and isinstance(node.value, bool) else node
        if argument and argument.form in ("json", "json_or_str") and isinstance(node.value, str):
            try:
                value = replace(json_node(Word(node.value, node.span)), key=node.key)
            except NotJson as error:
                found.append(wrong_value(f"the value of `{key}` is no JSON: {error}", node.span))
        settings[name] = Setting(name, value, key, argument)
    return settings
