"""What a text says about one engine, whatever its form: settings, environment, notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from specserve.convert.options import Option, Parsed
from specserve.convert.values import merged, node_of
from specserve.convert.words import Word
from specserve.diagnostics import Finding, Related, Severity, Span
from specserve.plan.table import Argument
from specserve.profile.problems import quoted
from specserve.profile.tree import Node

_ANSWERS = ("true", "false", "yes", "no", "on", "off", "0", "1", "none")
"""What stands after a switch that a person took for an option with a value; never a model."""


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


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a profile says otherwise than the text it comes from, and why."""

    path: str
    """Where the profile's comment stands: a dotted path, or `` for the head of the file."""
    text: str
    line: int = 0
    """Of the text; 0 where it has no lines."""


@dataclass(slots=True)
class Given:
    """One start of an engine as it was written."""

    engine: str
    """`vllm` or `sglang`."""
    what: str
    """`vllm serve`, `LLM(…)`."""
    place: Span
    settings: dict[str, Setting] = field(default_factory=dict)
    env: dict[str, Node] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    image: Word | None = None
    """The container's image, its tag included."""
    published: list[Word] = field(default_factory=list)
    """Ports that a container opens to the host, as written: `9000:8000`."""
    unresolved: list[Finding] = field(default_factory=list)
    """What the text does not say: `converted` refuses it."""
    words: list[Word] = field(default_factory=list)
    """The words after the program; none for a call in Python."""

    @property
    def is_call(self) -> bool:
        """Whether this is an engine in a Python program, which has no port."""
        return self.what.endswith("(…)")


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
    message, label = f"`{later.written}` stands twice, and the later one wins", "this one has no effect"
    if refused:
        code, name, severity = "SD143", "argument-refused-twice", Severity.ERROR
        message, label = f"`{later.written}` is said twice, which vLLM refuses", "and here"
    related = (Related(earlier, label),)
    return Finding(code, name, severity, message, later.place, related=related, help="leave one of them out")


def left_over(parsed: Parsed, found: list[Finding]) -> Node | None:
    """The model among the words that belong to no option; `found` gets every other such word."""
    model: Node | None = None
    for word, before in parsed.loose:
        if model is None and (before is None or word.text.lower() not in _ANSWERS):
            model = Node(word.text, word.span, key=word.span, raw=word.text)
            continue
        switch = before is not None and before.argument is not None and before.argument.form == "flag"
        message = f"{quoted(word.text)} belongs to no option"
        help_text = f"`{before.flag}` is a switch and takes no value" if switch and before else None
        found.append(Finding("SD102", "unknown-argument", Severity.ERROR, message, word.span, help=help_text))
    return model
