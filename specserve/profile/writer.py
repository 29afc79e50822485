"""YAML with comments: a document made of values, and a block of a profile changed in its text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any

from specserve.errors import FactError, SpecserveError
from specserve.files import write_named
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from specserve.profile.source import is_plain_text, read_by, read_file
from specserve.vllm.arguments import jsonable

_WIDTH = 100
_MISREAD = re.compile(r"[\d.]*[:,][\d.:,]*|.*\?.*")
"""What some readers take for something else: ports and lists of devices for numbers, `0?` for a key."""


@dataclass(frozen=True, slots=True)
class Commented:
    """A value with a comment above its key or its item."""

    comment: str
    value: Any


class Reference(str):
    """A text in which the reader of the document is to replace variables; in every other text it must not."""

    __slots__ = ()


def yaml_text(values: Mapping[str, Any], *, head: str = "", flow: bool = False) -> str:
    """A document of mappings, lists, scalars and `Commented` ones; the same bytes every time.

    `head`: a comment above it. `flow`: what fits on one line below the top-level sections stands on one line.
    """
    return comment(head) + _dumped(_yaml(), _mapping(values, 0, flow=flow))


def comment(text: str, *, indent: int = 0) -> str:
    """A text as lines of a comment; an empty text has none."""
    return "".join(f"{' ' * indent}{f'# {line}'.rstrip()}\n" for line in _lines(text, indent))


def _lines(text: str, indent: int) -> list[str]:
    """The text wrapped, without characters that would end a comment or hide in it."""
    lines: list[str] = []
    for line in text.split("\n") if text else ():
        clean = "".join(character if character.isprintable() else " " for character in line)
        hanging = "  " if clean.startswith("- ") else ""
        width = _WIDTH - indent - 2
        lines += wrap(clean, width, subsequent_indent=hanging, break_on_hyphens=False) or [""]
    return lines


def _mapping(values: Mapping[str, Any], indent: int, *, flow: bool) -> Any:
    from ruamel.yaml.comments import CommentedMap

    made = CommentedMap()
    for name, given in values.items():
        key, value = _text(name), given
        if isinstance(given, Commented):
            value = given.value
            _put_above(made, key, given.comment, indent)
        made[key] = _value(value, indent, flow=flow)
    return made


def _list(items: list[Any] | tuple[Any, ...], indent: int, *, flow: bool) -> Any:
    from ruamel.yaml.comments import CommentedSeq

    made = CommentedSeq()
    for index, given in enumerate(items):
        value, text = given, ""
        if isinstance(value, Commented):
            value, text = value.value, value.comment
        if isinstance(value, Mapping) and value:  # a comment on the first key stands above the dash
            first = next(iter(value))
            if isinstance(value[first], Commented):
                text = f"{text}\n{value[first].comment}".strip("\n")
                value = {**value, first: value[first].value}
        made.append(_value(value, indent, flow=flow))
        _put_above(made, index, text, indent)
    return made


def _put_above(holder: Any, key: Any, text: str, indent: int) -> None:
    if text:
        holder.yaml_set_comment_before_after_key(key, before="\n".join(_lines(text, indent)), indent=indent)


def _value(value: Any, indent: int, *, flow: bool) -> Any:
    """The value in ruamel's types."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        made = _mapping(value, indent + 2, flow=flow)
    elif isinstance(value, (list, tuple)):
        made = _list(value, indent, flow=flow)
    else:
        return value
    is_section = indent == 0 and isinstance(value, Mapping)
    if not value or (flow and not is_section and _is_short(value, indent)):
        made.fa.set_flow_style()
    return made


def _is_short(value: Any, indent: int) -> bool:
    """Whether a value has room on one line, and no comment in it."""
    try:
        return indent + len(json.dumps(value)) <= _WIDTH
    except TypeError:
        return False


def _text(text: str) -> Any:
    """A text, which may hold half a character that no file can hold; in quotes if a reader would misread it."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    text = text.encode(errors="replace").decode()
    # readers do not agree on a plain text that starts with a colon, such as `:;` in a mapping of one line
    plain = text.isprintable() and is_plain_text(text) and not _MISREAD.fullmatch(text) and text[:1] != ":"
    return text if plain else DoubleQuotedScalarString(text)


def _yaml() -> Any:
    """ruamel's YAML, which writes null as `null` and no number that YAML 1.1 takes for a text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.representer import RoundTripRepresenter

    class Representer(RoundTripRepresenter):
        pass

    def number(representer: Any, value: float) -> Any:
        node = RoundTripRepresenter.represent_float(representer, value)
        node.value = re.sub(r"^(-?\d+)e", r"\1.0e", node.value)
        return node

    def null(representer: Any, _: None) -> Any:
        return representer.represent_scalar("tag:yaml.org,2002:null", "null")

    Representer.add_representer(float, number)
    Representer.add_representer(type(None), null)
    yaml = YAML()
    yaml.Representer = Representer
    yaml.preserve_quotes = True
    yaml.width = 1_000_000
    return yaml


def _dumped(yaml: Any, data: Any) -> str:
    stream = StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


def rewrite_section(
    path: str, name: str, wanted: Mapping[str, Any] | None, *, said: Callable[[Profile], Any], remark: str
) -> bool:
    """Change one top-level section of a profile file; whether that changed anything. All other lines stay.

    `said`: what the section says in a profile that was read; the file is replaced only if it then says what is wanted.
    Raises ProfileError for a bad profile, FactError for a file that cannot be read, written or changed.
    """
    file = Path(path)
    inherited = jsonable(said(load_profile(path))) or {}
    try:
        before = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise FactError(f"cannot read `{file}`: {getattr(error, 'strerror', None) or error}") from error
    try:
        after = with_section(before, name, jsonable(wanted), inherited=inherited, remark=remark)
    except ValueError as error:
        raise _unchangeable(file) from error
    if after != before:
        _exchange(file, after, is_right=lambda profile: jsonable(said(profile)) == jsonable(wanted))
    return after != before


def write_alternatives(path: str, added: Mapping[str, Mapping[str, object]], *, remark: str) -> None:
    """Write blocks as alternatives, over those of the same name. Raises FactError."""

    def said(profile: Profile) -> dict[str, dict[str, object]]:
        return {name: dict(block.keys) for name, block in profile.alternatives.items()}

    whole = {**said(load_profile(path)), **added}
    rewrite_section(path, "alternatives", whole, said=said, remark=remark)


def _unchangeable(file: Path) -> FactError:
    return FactError(f"`{file}` is written in a way that `--write` cannot change", hint="change it by hand")


def _exchange(file: Path, text: str, *, is_right: Callable[[Profile], bool]) -> None:
    """The new text in the place of the old, if a profile of this text is right."""
    try:
        with read_by(lambda name: text.encode() if name == str(file) else read_file(name)):
            profile = load_profile(str(file))
    except SpecserveError as error:
        raise _unchangeable(file) from error
    if not is_right(profile):
        raise _unchangeable(file)
    write_named(file.resolve(), text)


def with_section(
    text: str, name: str, wanted: Mapping[str, Any] | None, *, inherited: Mapping[str, Any], remark: str
) -> str:
    """A profile's text with a top-level mapping that says what is wanted (None: null), and a remark above it.

    All other lines stay. In a block of the same `method` the comments stay too; another one becomes a comment.
    `inherited`: what the section says so far, parents included; what is wanted no more becomes null. An earlier
    remark that begins with the same words, up to a colon, is replaced. Raises ValueError if it cannot be done.
    """
    text += "" if text.endswith("\n") or not text else "\n"
    found = re.search(_SECTION.format(name=name), text, re.M)
    before, old, after = (text[: found.start()], found[0], text[found.end() :]) if found else (text, "", "")
    new = _changed(old, name, wanted, inherited) if old and wanted is not None else None
    if new is None:
        before += "".join(f"# {line}" if line.strip() else line for line in old.splitlines(keepends=True))
        new = yaml_text({name: wanted}, flow=True)
    earlier = re.escape(comment(remark.split(":", 1)[0]).rstrip())
    above = re.search(r"(#.*\n)*\Z", before)
    assert above is not None
    kept = re.sub(rf"^{earlier}:.*\n(#   .*\n)*", "", above[0], flags=re.M)
    noted = comment(f"- {remark}").replace("# - ", "# ", 1)  # its further lines are indented: they go with it
    return f"{before[: above.start()]}{kept}{noted}{new}{after}"


# a key at the margin with all that is indented below it; comments and empty lines behind that are not part of it
_SECTION = r"^{name}[ ]*:.*\n(?:(?:[ ]*(?:#.*)?\n)*[ ]+[^ \n].*\n|[-\]}}].*\n)*"


def _changed(old: str, name: str, wanted: Mapping[str, Any], inherited: Mapping[str, Any]) -> str | None:
    """The block with the wanted values, its comments kept; None if it is for another method."""
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.util import load_yaml_guess_indent

    yaml = _yaml()
    try:
        data, sequence, offset = load_yaml_guess_indent(old, yaml=yaml)
    except YAMLError as error:
        raise ValueError(f"`{name}` cannot be changed: {error}") from error
    block = data[name]
    if not isinstance(block, CommentedMap) or inherited.get("method") != wanted.get("method"):
        return None
    width = re.search(r"\n( +)\S", old)
    yaml.indent(mapping=len(width[1]) if width else None, sequence=sequence, offset=offset)
    for key in dict.fromkeys((*inherited, *wanted)):
        value = wanted.get(key)
        if inherited.get(key) != value:
            behind = _comment_behind(block, key) if key in block else None
            block[key] = _value(value, 2, flow=True)
            if behind:
                block.ca.items[key] = [None, None, behind, None]
    return _dumped(yaml, data)


def _comment_behind(holder: Any, key: Any) -> Any:
    """What stands behind a value up to the next key: ruamel hangs it on the last item of a list."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    value = holder[key]
    while isinstance(value, (CommentedMap, CommentedSeq)) and value and not value.fa.flow_style():
        holder, key = value, len(value) - 1 if isinstance(value, CommentedSeq) else next(reversed(value))
        value = holder[key]
    return next((item for item in holder.ca.items.get(key, ()) if item), None)
