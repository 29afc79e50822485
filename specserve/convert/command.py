"""Settings to the tree of a profile, and a raw command line to a Profile in memory, judged as it is.

Source: SpeculativeConfig, vllm/config/speculative.py, 0.26 to 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specserve.convert.arguments import (
    Setting,
    command_settings,
    left_open,
    place_of,
    refused_spellings,
    said_twice,
)
from specserve.convert.launch import STARTS, Launch, invocation
from specserve.convert.options import argument_names, first_like_newest, options
from specserve.convert.words import UNKNOWN, Word, argv_words, finding
from specserve.diagnostics import Finding, Severity, Span
from specserve.errors import UsageError, did_you_mean, quoted
from specserve.plan.arguments import REFUSED, problems
from specserve.plan.launch import DRAIN_MARGIN_S
from specserve.plan.replacements import ARGUMENTS, KEYS
from specserve.profile.keys import BLOCK_KEYS, EVERY_KEY, Key, kind_of
from specserve.profile.load import MAKERS, absolute_paths, apply
from specserve.profile.problems import ordered
from specserve.profile.schema import Profile
from specserve.profile.secrets import hushed, names_a_secret
from specserve.profile.source import COMMAND, keep
from specserve.profile.validate import name_of, read_profile
from specserve.profile.values import Node, meaning
from specserve.vllm.arguments import VllmTable
from specserve.vllm.speculation import METHODS, retyped
from specserve.vllm.versions import newest

_LAUNCH = ("plan", "up", "render")
"""Commands of specserve that need a server that answers."""
_REMEMBERED: dict[str, list[str]] = {}


class NoStart(UsageError):
    """The command starts no vLLM; whoever took it says how it is written."""


def profile_of(words: Iterable[str], *, settings: Iterable[str] = ()) -> tuple[Profile | None, list[Finding]]:
    """The profile that a command line amounts to, and what is wrong with the line itself.

    The findings and the profile's spans point into the pseudo-file `<command>`, whose one line is the command
    with its secrets starred. An option that vLLM does not have stands under `engine`, where SD102 tells it.
    Raises UsageError for a command that starts no vLLM.
    """
    line, argv = argv_words(words)
    start = _started(argv)
    found = [left_open(word) for word in start.words if UNKNOWN.search(word.text)]
    given = command_settings(start.words, options(), folder=Path.cwd(), found=found, unresolved=found)
    names = argument_names()
    for name, setting in list(given.items()):
        if name not in names:
            text = f"vLLM has no option {quoted(setting.written)}"
            found.append(finding("SD102", text, given.pop(name).place, help=advice(name, names)))
    secrets = [setting.node.span for setting in given.values() if setting.name in SECRETS]
    secrets += [word.span for name, word in start.env.items() if names_a_secret(name)]
    keep(COMMAND, hushed(starred(line, secrets)).encode(errors="replace"))
    env = {name: word.node() for name, word in start.env.items()}
    sections, block = profile_sections(given, table=newest(), env=env, found=found)
    tree = as_tree(sections, block, start.start.span)
    model = sections["target"].get("model")
    if model and isinstance(model.value, str):
        last = model.value.rstrip("/").rpartition("/")[2]
        tree = replace(tree, value={**(tree.mapping or {}), "name": Node(name_of(f"{last}.x"), model.span)})
    tree = apply(absolute_paths(tree, folder=Path.cwd()), settings)
    profile, more = read_profile(tree, file=COMMAND)
    if profile:
        if profile.vllm is None and (first := _first_version(profile)):
            profile = replace(profile, vllm=f">={first}")
        is_closed = (
            "server.host" in profile.spans or profile.server.api_key_env or profile.frontend.get("uds")
        )
        if not is_closed and "headless" not in given:
            text = "without `--host` vLLM listens on every interface, here without an API key"
            hint = "add `--host 127.0.0.1`, as specserve does, or export VLLM_API_KEY"
            found.append(finding("SD108", text, start.start.span, severity=Severity.WARNING, help=hint))
    findings = [*found, *map(_explained, more)]
    return profile, ordered(
        replace(item, message=hushed(item.message), help=item.help and hushed(item.help)) for item in findings
    )


def _started(argv: Sequence[Word]) -> Launch:
    """The start of vLLM among the words, in the script of a shell too."""
    start = invocation(argv)
    if start is None:
        what = quoted(argv[0].text) if argv else "nothing"
        raise NoStart(f"{what} is not a command that starts vLLM")
    if start.engine != "vllm":
        raise UsageError(
            "this command starts SGLang, which specserve does not run",
            hint="run `specserve convert -- …` to turn it into a profile for vLLM",
        )
    if start.start not in argv:  # of a script: its places are those of the whole text
        whole = next((word.span for word in argv if STARTS.search(word.text)), argv[0].span)
        start.words = [replace(word, span=whole) for word in start.words]
        start.start = replace(start.start, span=whole)
        start.env = {name: replace(word, span=whole) for name, word in start.env.items()}
    return start


def _explained(item: Finding) -> Finding:
    """The finding about a key of the block, with what took the key's place."""
    head, _, key = item.span.path.rpartition(".")
    old = KEYS.get(key.replace("-", "_"))
    if item.code != "SD005" or head != "speculation" or old is None:
        return item
    return replace(item, help=f"write `{old.now}`: {old.why}" if old.now else f"leave it out: {old.why}")


def _first_version(profile: Profile) -> str | None:
    """The first of those vLLMs that take all that the newest takes: an option of 0.33 is no mistake."""

    def refused(known: VllmTable) -> set[tuple[str, str]]:
        found = (*problems(profile, known), *refused_spellings(profile, known))
        return {(item.path, item.kind) for item in found}

    first = first_like_newest(refused)
    return first[0] if first else None


def advice(name: str, known: Collection[str]) -> str | None:
    """What to write in place of an argument that no vLLM has any more, or never had."""
    old = ARGUMENTS.get(name)
    if old is None:
        guess = did_you_mean(name, known)
        return f"did you mean `--{guess.replace('_', '-')}`?" if guess else None
    return old.why if old.now else f"leave it out: {old.why}"


def write_behind_dashes(command: str) -> str:
    """A hint that shows how a vLLM command is given to this command of specserve."""
    return f"write `specserve {command} -- vllm serve MODEL --speculative-config '{{…}}'`"


def remember(words: Sequence[str], *, asked: str = "check") -> str:
    """The name under which this command is a profile from now on. `asked`: the command of specserve that takes it."""
    words = list(words)
    if asked in _LAUNCH and "--headless" in words:
        raise UsageError(
            f"this command starts a worker that answers no requests; `{asked}` needs a server that answers",
            hint="use the first node's command; `specserve check -- …` can check this one",
        )
    _REMEMBERED[COMMAND] = words

    def made(settings: Iterable[str]) -> tuple[Profile | None, list[Finding]]:
        try:
            return profile_of(words, settings=settings)
        except NoStart as error:
            error.hint = write_behind_dashes(asked)
            raise

    MAKERS[COMMAND] = made
    return COMMAND


def remembered(name: str) -> list[str] | None:
    """The words of the command that has this name; None for a file."""
    return _REMEMBERED.get(name)


API_KEY = "api_key"
SECRETS = (API_KEY, "hf_token")
_NGRAM = ("ngram", "[ngram]")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_GEMMA_ASSISTANT = re.compile(r"gemma-?4.*assistant", re.I)


Sections = dict[str, dict[str, Node]]


def profile_sections(
    settings: Mapping[str, Setting], *, table: VllmTable, env: Mapping[str, Node], found: list[Finding]
) -> tuple[Sections, Node | None]:
    """The keys that each section of a profile gets, and its block of speculation.

    Unknown arguments go to `engine`, where the rules report them; what has no place is reported to `found`.
    """
    sections: Sections = {"target": {}, "env": dict(env)}
    if "model" in settings:
        sections["target"]["model"] = settings["model"].node
    config = settings.get("speculative_config")
    at = config.node if config else None
    block = dict(at.mapping or {}) if at else {}
    for name, setting in settings.items():
        if name in SECRETS or (name in REFUSED and setting.node.value):
            found.append(_without_place(setting))
        if name in (*SECRETS, *REFUSED) and name != API_KEY:
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
    """The tree that `validate` reads. `place` stands for what is written nowhere."""
    tree = {
        name: Node(values, place, key=place)
        for name, values in sections.items()
        if values or name == "target"
    }
    return Node({**tree, "speculation": block} if block else tree, place)


def _node(setting: Setting, found: list[Finding]) -> Node:
    """The value as a profile has it: one name, a time-out that counts to the end, the variable of a key."""
    node, value = setting.node, setting.node.value
    if setting.name == API_KEY:
        return Node(_key_variable(node), node.span, key=node.key)
    if setting.name == "shutdown_timeout" and isinstance(value, int):
        return replace(node, value=value + DRAIN_MARGIN_S, raw=None)
    if setting.name != "served_model_name" or not isinstance(value, list) or not value:
        return node
    for other in value[1:]:
        message = f"specserve serves under one name: {quoted(str(other.value))} is left out"
        found.append(finding("SD005", message, other.span, severity=Severity.INFO))
    return replace(value[0], key=node.key, value=str(value[0].value))


def _key_variable(node: Node) -> str:
    """The variable that holds the server's key: the one that the source names, or vLLM's own."""
    items = node.value if isinstance(node.value, list) else [node]
    names = [match[1] for item in items[:1] if (match := UNKNOWN.fullmatch(str(item.value)))]
    return next((name for name in names if name.isidentifier()), "VLLM_API_KEY")


def _without_place(setting: Setting) -> Finding:
    """About an argument that vLLM takes, and that a profile never holds."""
    if setting.name in SECRETS:
        variable = _key_variable(setting.node) if setting.name == API_KEY else "HF_TOKEN"
        text = f"`{setting.written}` shows a secret to every user of the machine: export it as `{variable}`"
        span, hint = setting.node.span, "leave the option out"
        return finding("SD107", text, span, severity=Severity.WARNING, help=hint)
    message, severity = f"`{setting.written}` is left out: {REFUSED[setting.name]}", Severity.WARNING
    if setting.name == "headless":
        message = "this worker answers no requests; everything else is judged as on the first node"
        severity = Severity.INFO
    return finding("SD005", message, setting.place, severity=severity)


def _speculation(config: Node, found: list[Finding]) -> Node:
    """The block with vLLM's spelling and the method that vLLM would infer; reports and leaves out what vLLM ignores."""
    if config.mapping is None:
        return config
    keys = {name.replace("-", "_"): node for name, node in config.mapping.items() if node.value is not None}
    model, written = _text(keys.get("model")), _text(keys.get("method"))
    name = written
    if "method" not in keys and (name := inferred_method(model)):
        keys = {"method": Node(name, keys["model"].span, key=config.key), **keys}
    elif written == "[ngram]" or (written or "").endswith("_mtp"):
        name = "ngram" if written == "[ngram]" else "mtp"
        keys["method"] = replace(keys["method"], value=name, raw=name)
        message = f"{quoted(f'method: {written}')} is an old name of `{name}`"
        found.append(
            finding("SD006", message, keys["method"].span, severity=Severity.WARNING, help=f"write `{name}`")
        )
    method = METHODS.get(name or "")
    if method and method.draft == "text" and model in _NGRAM:
        keys.pop("model")  # another name of the method
    takes = BLOCK_KEYS.get(name or "", {})
    for key in [key for key in keys if takes and key not in takes and key in EVERY_KEY]:
        node = keys.pop(key)
        message = f"`{key}` has no effect with `{name}`"
        found.append(
            finding("SD006", message, node.key or node.span, severity=Severity.WARNING, help="leave it out")
        )
    return replace(config, value={key: _typed(takes.get(key), node) for key, node in keys.items()})


def inferred_method(model: str | None) -> str | None:
    """The method that vLLM takes for a block without one, as far as the model's name tells."""
    if model is None:
        return None
    if model in _NGRAM:
        return "ngram"
    if _IMPORT_PATH.fullmatch(model):
        return "custom_class"
    if _GEMMA_ASSISTANT.search(model):
        return "mtp"
    change = retyped("draft_model", model)
    return change[0] if change else "draft_model"


def _text(node: Node | None) -> str | None:
    return node.value if node and isinstance(node.value, str) else None


def _typed(key: Key | None, node: Node) -> Node:
    """Numbers and switches in quotes as what they are, because vLLM reads them so."""
    if key is None or kind_of(key) not in ("int", "float", "bool") or not isinstance(node.value, str):
        return node
    value = meaning(node.value)
    return replace(node, value=value, raw=node.value) if isinstance(value, (int, float)) else node


def starred(line: str, places: Iterable[Span]) -> str:
    """The line with these places hidden, and nothing moved."""
    for span in places:
        start, end = span.column - 1, span.end_column - 1
        line = line[:start] + "*" * (end - start) + line[end:]
    return line
