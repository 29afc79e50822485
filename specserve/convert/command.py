"""Settings to the tree of a profile, and a raw command line to a profile in memory.

Source: SpeculativeConfig, vllm/config/speculative.py, 0.26 to 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specserve.convert.arguments import (
    Setting,
    command_settings,
    option_strings,
    options,
    place_of,
    said_twice,
)
from specserve.convert.launch import starts
from specserve.convert.words import UNKNOWN, argv_words, finding, readable
from specserve.diagnostics import Finding, Severity, Span
from specserve.errors import UsageError, did_you_mean, quoted
from specserve.plan.arguments import REFUSED
from specserve.plan.launch import DRAIN_MARGIN_S
from specserve.profile.load import MAKERS, absolute_paths, apply
from specserve.profile.schema import Profile
from specserve.profile.secrets import hushed, names_a_secret
from specserve.profile.source import COMMAND, keep
from specserve.profile.tree import Node, ordered
from specserve.profile.validate import read_profile
from specserve.vllm.arguments import VllmTable
from specserve.vllm.facts import ARGUMENTS
from specserve.vllm.speculation import METHODS, retyped
from specserve.vllm.versions import newest, newest_in, table

Sections = dict[str, dict[str, Node]]
_LAUNCH = ("plan", "up", "render")  # what needs a server that answers
_SECRETS = ("api_key", "hf_token")
_NGRAM = ("ngram", "[ngram]")
_GEMMA_ASSISTANT = re.compile(r"gemma-?4.*assistant", re.I)


def remember(words: Sequence[str], *, asked: str = "check") -> str:
    """The name of the profile that a command is from now on. `asked`: what specserve does with it.

    Raises UsageError for a worker where a server is asked for.
    """
    if asked in _LAUNCH and "--headless" in words:
        text = "this command starts a worker that answers no requests"
        hint = "use the first node's command; `specserve check -- …` can check this one"
        raise UsageError(f"{text}; `{asked}` needs a server that answers", hint=hint)

    MAKERS[COMMAND] = lambda settings: profile_of(words, settings=settings, asked=asked)
    return COMMAND


def profile_of(
    words: Iterable[str], *, settings: Iterable[str] = (), asked: str = "check"
) -> tuple[Profile | None, list[Finding]]:
    """The profile that a vLLM command amounts to, and what is wrong with the command itself.

    Places are in the pseudo-file `<command>`, which is the command in one line with its secrets
    starred. A server without `--host` listens on every interface, as it would in vLLM, except where
    specserve is `asked` to launch it. Raises UsageError for what starts no vLLM.
    """
    line, argv = argv_words(words)
    start = next(iter(starts(argv)), None)
    if start is None or start.start not in argv:
        what = quoted(argv[0].text) if argv else "nothing"
        hint = f"write `specserve {asked} -- vllm serve MODEL --speculative-config '{{…}}'`"
        raise UsageError(f"{what} is not a command that starts vLLM", hint=hint)
    if start.engine != "vllm":
        hint = "run `specserve convert -- …` to turn it into a profile for vLLM"
        raise UsageError("this command starts SGLang, which specserve does not run", hint=hint)
    found: list[Finding] = []
    folder = Path.cwd()
    given = command_settings(start.words, options(), folder=folder, found=found, unresolved=found)
    strangers = [one for one in given.values() if one.argument is None and one.name != "model"]
    found += [_unknown(given.pop(one.name), of=len(strangers)) for one in strangers]
    secrets = [setting.node.span for setting in given.values() if setting.name in _SECRETS]
    secrets += [word.span for name, word in start.env.items() if names_a_secret(name)]
    for span in secrets:
        first, end = span.column - 1, span.end_column - 1
        line = line[:first] + "*" * (end - first) + line[end:]
    keep(COMMAND, hushed(line).encode(errors="replace"))
    env = {name: word.node() for name, word in start.env.items()}
    sections, block = profile_sections(given, table=newest(), env=env, found=found)
    place = start.start.span
    if asked not in _LAUNCH and not given.keys() & {"host", "uds", "headless"}:
        sections.setdefault("server", {})["host"] = Node("0.0.0.0", place, key=place)  # noqa: S104
    tree = absolute_paths(as_tree(sections, block, place), folder=folder)
    tree = apply(tree, settings)
    profile, more = read_profile(tree, file=COMMAND)
    if profile:
        judged = table(newest_in(profile.vllm))
        spellings, known = option_strings(judged), {**judged.engine, **judged.frontend}
        for setting in given.values():
            flag = setting.written
            if flag.startswith("-") and flag not in spellings and setting.name in known:
                text = f"vLLM {judged.minor} has no option `{flag}`"
                found.append(finding("SD102", text, setting.place))
    return profile, ordered(
        item._replace(message=hushed(item.message), help=item.help and hushed(item.help))
        for item in (*found, *more)
    )


def _unknown(setting: Setting, *, of: int) -> Finding:
    """About an option that vLLM never had, or no longer has."""
    flag = quoted(setting.written)
    if setting.name in ARGUMENTS:
        help = "`specserve convert -- …` writes a profile with what took its place"
        return finding("SD102", f"vLLM no longer has {flag}", setting.place, help=help)
    guess = did_you_mean(setting.written, options(), of=of)
    hint = f"did you mean `{guess}`?" if guess else None
    return finding("SD102", f"vLLM has no option {flag}", setting.place, help=hint)


def profile_sections(
    settings: Mapping[str, Setting],
    *,
    table: VllmTable,
    env: Mapping[str, Node],
    found: list[Finding],
) -> tuple[Sections, Node | None]:
    """The keys that each section of a profile gets, and its block of speculation.

    What has no place in a profile is reported to `found`.
    """
    sections: Sections = {"target": {}, "env": dict(env)}
    if "model" in settings:
        sections["target"]["model"] = settings["model"].node
    config = settings.get("speculative_config")
    at = config.node if config else None
    block = dict(at.mapping or {}) if at else {}
    for name, setting in settings.items():
        if name in _SECRETS or (name in REFUSED and setting.node.value):
            found.append(_without_place(setting))
        if name in (*_SECRETS, *REFUSED) and name != "api_key":
            continue
        node = _node(setting, found)
        section, _, key = place_of(name, table).partition(".")
        if section == "speculation" and key:
            if key in block:
                found.append(said_twice(block[key].key or block[key].span, setting, refused=True))
            block[key], at = node, at or replace(node, value={})
        elif section != "speculation" and (node.value is not None or section != "server"):
            sections.setdefault(section, {})[key] = node
    if at and block:
        return sections, _speculation(replace(at, value=block), found)
    return sections, at if at and at.value is not None else None


def as_tree(sections: Sections, block: Node | None, place: Span) -> Node:
    """The tree that `read_profile` reads. `place` stands for what is written nowhere."""
    kept = (item for item in sections.items() if item[1] or item[0] == "target")
    tree = {name: Node(values, place, key=place) for name, values in kept}
    return Node({**tree, "speculation": block} if block else tree, place)


def _node(setting: Setting, found: list[Finding]) -> Node:
    """The value as a profile has it: one name, a whole time-out, the variable of a key."""
    node, value = setting.node, setting.node.value
    if setting.name == "api_key":
        return Node(_key_variable(node), node.span, key=node.key)
    if setting.name == "shutdown_timeout" and isinstance(value, int):
        return replace(node, value=value + DRAIN_MARGIN_S, raw=None)
    if setting.name != "served_model_name" or not isinstance(value, list) or not value:
        return node
    for other in value[1:]:
        message = f"specserve serves under one name: {quoted(str(other.value))} is left out"
        found.append(finding("SD005", message, other.span, Severity.INFO))
    return replace(value[0], key=node.key, value=str(value[0].value))


def _key_variable(node: Node) -> str:
    """The variable that holds the server's key: the one that the source names, or vLLM's own."""
    text = str(node.value[0].value if isinstance(node.value, list) and node.value else node.value)
    name = readable(text).removeprefix("$") if UNKNOWN.fullmatch(text) else ""
    return name if name.isidentifier() else "VLLM_API_KEY"


def _without_place(setting: Setting) -> Finding:
    """About an argument that vLLM takes, and that a profile never holds."""
    flag = setting.written
    if setting.name in _SECRETS:
        variable = _key_variable(setting.node) if setting.name == "api_key" else "HF_TOKEN"
        text = f"`{flag}` shows a secret to every user of the machine: export it as `{variable}`"
        return finding("SD107", text, setting.node.span, Severity.WARNING, help="leave it out")
    text = f"`{flag}` is left out: {REFUSED[setting.name]}"
    return finding("SD005", text, setting.place, Severity.WARNING)


def _speculation(config: Node, found: list[Finding]) -> Node:
    """The block with vLLM's spelling and the method that vLLM would infer.

    What vLLM ignores is reported and left out.
    """
    if config.mapping is None:
        return config
    given = config.mapping.items()
    keys = {name.replace("-", "_"): node for name, node in given if node.value is not None}
    texts = {name: node.value for name, node in keys.items() if isinstance(node.value, str)}
    model, name = texts.get("model", ""), texts.get("method", "")
    if "method" not in keys and model:  # vLLM tells it by the model, here by its name
        change = retyped("draft_model", model)
        name = change[0] if change else "draft_model"
        name = "mtp" if _GEMMA_ASSISTANT.search(model) else "ngram" if model in _NGRAM else name
        keys = {"method": Node(name, keys["model"].span, key=config.key), **keys}
    elif name == "[ngram]" or name.endswith("_mtp"):
        text, name = f"`method: {name}` is an old name of", "mtp" if "_" in name else "ngram"
        keys["method"] = replace(keys["method"], value=name, raw=name)
        place, help = keys["method"].span, f"write `{name}`"
        found.append(finding("SD006", f"{text} `{name}`", place, Severity.WARNING, help=help))
    method = METHODS.get(name)
    if method and method.draft == "text" and model in _NGRAM:
        keys.pop("model")  # another name of the method
    return replace(config, value=keys)
