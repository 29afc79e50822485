"""What a text says about one engine, whatever its form: settings, environment, notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from specserve.convert.options import NotJson, Option, Parsed, json_node, merged, node_of, wrong_value
from specserve.convert.words import UNKNOWN, Note, Word, readable
from specserve.diagnostics import Finding, Related, Severity, Span
from specserve.errors import quoted
from specserve.profile.source import MAX_BYTES, parse
from specserve.profile.values import Node
from specserve.vllm.arguments import Argument
from specserve.vllm.versions import options

LEFT_OVER = "belongs to no option"
_ANSWERS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
"""What stood after a switch of earlier vLLMs, and what it meant; never a model."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One argument with its value, as it was written: on a command line, in a file of arguments, in Python."""

    name: str
    """vLLM's own name, or what would be it."""
    node: Node
    written: str
    """`--tensor-parallel-size`, or the keyword."""
    argument: Argument | None = None
    inline: bool = False
    """The value follows a `=`, in one word with the option."""

    @property
    def place(self) -> Span:
        """Where the name stands."""
        return self.node.key or self.node.span


@dataclass(slots=True)
class EngineStart:
    """One start of an engine as it was written: its arguments, and what stands around it."""

    engine: str
    """`vllm` or `sglang`."""
    start: Word
    """The word that names the program, or `LLM(…)`."""
    words: list[Word] = field(default_factory=list)
    """The words after the program; none for a call in Python."""
    settings: dict[str, Setting] = field(default_factory=dict)
    env: dict[str, Word] = field(default_factory=dict)
    devices: Word | None = None
    """`--gpus` of a container."""
    image: Word | None = None
    """The container's image, its tag included."""
    published: list[Word] = field(default_factory=list)
    """Ports that a container opens to the host, as written: `9000:8000`."""
    notes: list[Note] = field(default_factory=list)
    unresolved: list[Finding] = field(default_factory=list)
    """What the text does not say: `converted` refuses it."""

    @property
    def what(self) -> str:
        """The program for a person: `vllm serve`, `LLM(…)`."""
        if self.is_call:
            return self.start.text
        if self.engine == "sglang":
            return "SGLang's launch_server"
        program = "api_server" if self.start.text == "-m" else self.start.text
        return "`vllm serve`" if program.endswith("vllm") else f"`{program}`"

    @property
    def place(self) -> Span:
        """Where the program stands."""
        return self.start.span

    @property
    def is_call(self) -> bool:
        """Whether this is an engine in a Python program, which has no port."""
        return self.start.text.endswith("(…)")


def command_settings(
    parsed: Parsed, *, folder: Path, found: list[Finding], unresolved: list[Finding]
) -> dict[str, Setting]:
    """Every argument of a command line over those of its `--config` file, which begins at `folder`.

    `found` gets what vLLM's parser refuses or overrides, `unresolved` what the text does not say.
    """
    settings = settings_of(parsed.options, found)
    taken = False
    for word, before in parsed.loose:
        switch = before is not None and before.argument is not None and before.argument.form == "flag"
        answer = _ANSWERS.get(word.text.lower()) if switch else None
        if answer is not None and before is not None:
            setting = settings[before.name]
            node = replace(setting.node, value=answer is not before.negative)
            settings[before.name] = replace(setting, node=node)
            message = f"`{before.flag} {word.text}`: a switch no longer takes a value"
            found.append(_of_no_option(message, word, f"write `{before.flag}`, or leave it out"))
        elif parsed.positional and not taken and not (before and "model" in settings):
            taken = True
            settings["model"] = Setting("model", word.node(), word.text)
        elif UNKNOWN.search(word.text):
            unresolved.append(left_open(word))
        else:
            help_text = f"`{before.flag}` is a switch and takes no value" if switch and before else None
            found.append(_of_no_option(f"{quoted(word.text)} {LEFT_OVER}", word, help_text))
    config = settings.pop("config", None)
    if config is None or not isinstance(config.node.value, str):
        return settings
    if config.inline:  # vLLM 0.26 to 0.33, `_pull_args_from_config` of vllm/utils/argparse_utils.py
        text = "vLLM ignores `--config=FILE`: it reads `--config FILE` only"
        found.append(_about_file(config, text, help="write it as two words"))
        return settings
    return {**_file_settings(config, config.node.value, folder, found, unresolved), **settings}


def _of_no_option(message: str, word: Word, help: str | None) -> Finding:
    return Finding("SD102", "unknown-argument", Severity.ERROR, message, word.span, help=help)


def left_open(word: Word) -> Finding:
    """An error about a word that the source does not say."""
    name = quoted(readable(word.text))
    return wrong_value(f"the source does not say what {name} is", word.span, help="write its value")


def settings_of(options: Iterable[Option], found: list[Finding]) -> dict[str, Setting]:
    """The settings of a command line by name. `found` gets what vLLM's parser refuses or overrides."""
    settings: dict[str, Setting] = {}
    dotted: dict[str, Setting] = {}
    for option in options:
        node = node_of(option, found)
        if node is None:
            continue
        setting = Setting(option.name, node, option.flag, option.argument, inline=option.inline)
        chosen = dotted if option.keys else settings
        earlier = chosen.get(setting.name)
        if earlier and (option.keys or (option.argument and option.argument.form == "append")):
            setting = replace(setting, node=merged(earlier.node, node))
        elif earlier:
            found.append(said_twice(earlier.place, setting))
        chosen[setting.name] = setting
    for name, setting in dotted.items():  # vLLM appends them, so that they win
        if name in settings:
            found.append(said_twice(settings[name].place, setting))
        settings[name] = setting
    return settings


def said_twice(earlier: Span, later: Setting, *, refused: bool = False) -> Finding:
    """About a setting that stands in two places, of which the later one wins, or which vLLM refuses."""
    code, name, severity = "SD144", "shadowed-setting", Severity.WARNING
    message, label = f"`{later.written}` occurs twice, and the later one wins", "this one has no effect"
    if refused:
        code, name, severity = "SD143", "argument-refused-twice", Severity.ERROR
        message, label = f"`{later.written}` is said twice, which vLLM refuses", "and here"
    related = (Related(earlier, label),)
    return Finding(code, name, severity, message, later.place, related=related, help="leave one of them out")


def _about_file(config: Setting, message: str, *, help: str) -> Finding:
    return Finding("SD103", "misplaced-argument", Severity.ERROR, message, config.node.span, help=help)


def _file_settings(
    config: Setting, name: str, folder: Path, found: list[Finding], unresolved: list[Finding]
) -> dict[str, Setting]:
    """The keys of a file of arguments: `tensor-parallel-size: 4` is `--tensor-parallel-size 4`."""
    if UNKNOWN.search(name):
        unresolved.append(left_open(Word(name, config.node.span)))
        return {}
    try:
        with (folder / name).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        text = f"cannot read the arguments in {quoted(name)}: {reason}"
        unresolved.append(_about_file(config, text, help="put the arguments on the command line"))
        return {}
    tree, problems = parse(data, file=name)
    unresolved += problems
    known = options()
    settings: dict[str, Setting] = {}
    for key, node in ((tree.mapping if tree else None) or {}).items():
        argument, negative = known.get("--" + key.replace("_", "-"), (None, False))
        held = replace(node, value=not node.value) if negative and isinstance(node.value, bool) else node
        if argument and argument.form in ("json", "json_or_str") and isinstance(node.value, str):
            try:
                held = replace(json_node(Word(node.value, node.span)), key=node.key)
            except NotJson as error:
                found.append(wrong_value(f"the value of `{key}` is not JSON: {error}", node.span))
        called = argument.name if argument else key.replace("-", "_")
        settings[called] = Setting(called, held, key, argument)
    return settings
