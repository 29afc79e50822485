"""YAML with comments: a document made of values, and a section of a profile changed in its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any

from yaml.emitter import Emitter
from yaml.nodes import ScalarNode
from yaml.resolver import Resolver

from specserve.errors import FactError
from specserve.files import write_named
from specserve.profile.load import examine, load_profile
from specserve.profile.schema import Profile
from specserve.profile.source import read
from specserve.profile.tree import meaning
from specserve.vllm.arguments import jsonable

_WIDTH = 100
_MISREAD = re.compile(r"[\d.]*[:,][\d.:,]*|.*\?.*|:.*|0o\d+|[yYnN]")
"""What readers differ on: ports and lists of devices, octal numbers, `0?` for a key."""
_ANALYSER: Any = Emitter(StringIO())
_RESOLVER: Any = Resolver()


@dataclass(frozen=True, slots=True)
class Commented:
    """A value with a comment above its key or its item."""

    comment: str
    value: Any


def yaml_text(values: Mapping[str, Any], *, head: str = "", flow: bool = False) -> str:
    """A document of mappings, lists, scalars and `Commented` ones; the same bytes every time.

    `head`: a comment above it. `flow`: what fits on one line below the top-level sections stands
    on one line.
    """
    return comment(head) + ("".join(_block(values, 0, flow=flow)) or "{}\n")


def comment(text: str, *, indent: int = 0) -> str:
    """A text as lines of a comment; an empty text has none."""
    lines: list[str] = []
    for line in text.split("\n") if text else ():
        clean = "".join(character if character.isprintable() else " " for character in line)
        hanging = "  " if clean.startswith("- ") else ""
        width = _WIDTH - indent - 2
        lines += wrap(clean, width, subsequent_indent=hanging, break_on_hyphens=False) or [""]
    return "".join(f"{' ' * indent}{f'# {line}'.rstrip()}\n" for line in lines)


def _block(values: Any, indent: int, *, flow: bool) -> Iterator[str]:
    """The lines of a mapping or a list that is not empty."""
    is_list = not isinstance(values, Mapping)
    for name, given in enumerate(values) if is_list else values.items():
        note, value = (given.comment, given.value) if isinstance(given, Commented) else ("", given)
        first = next(iter(value)) if is_list and isinstance(value, Mapping) and value else None
        if isinstance(value, Mapping) and isinstance(value.get(first), Commented):
            # a comment on the first key stands above the dash
            note = f"{note}\n{value[first].comment}".strip("\n")
            value = {**value, first: value[first].value}
        yield comment(note, indent=indent)
        lead = " " * indent + ("-" if is_list else f"{_scalar(str(name), 'allow_block_plain')}:")
        is_section = indent == 0 and isinstance(value, Mapping)
        is_inline = not isinstance(value, (Mapping, list, tuple)) or not value
        shape = repr(value)
        is_short = indent + len(shape) <= _WIDTH and "Commented(" not in shape
        if is_inline or (flow and is_short and not is_section):
            plain = "allow_block_plain" if is_inline else "allow_flow_plain"
            yield f"{lead} {_inline(value, plain)}\n"
            continue
        deeper = indent + 2 if is_list or isinstance(value, Mapping) else indent
        inner = "".join(_block(value, deeper, flow=flow))
        yield f"{lead} {inner[deeper:]}" if is_list else f"{lead}\n{inner}"


def _inline(value: Any, plain: str = "allow_flow_plain") -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        pairs = (f"{_scalar(key, plain)}: {_inline(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, str):
        return _scalar(value, plain)
    text = json.dumps(value)  # YAML 1.1 takes 1e-05 for a text
    return re.sub(r"^(-?\d+)e", r"\1.0e", text) if isinstance(value, float) else text


def _scalar(text: str, plain: str) -> str:
    """A text without half characters, which no file can hold; in quotes if readers may differ."""
    text = text.encode(errors="replace").decode()
    is_text = _RESOLVER.resolve(ScalarNode, text, (True, False)).endswith(":str")
    is_text = is_text and isinstance(meaning(text), str) and not _MISREAD.fullmatch(text)
    if is_text and text.isprintable():
        if getattr(_ANALYSER.analyze_scalar(text), plain):
            return text
        if "'" not in text:
            return f"'{text}'"
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08X}" for one in escaped)


# a key at the margin with all that is indented below it; what stands behind that is not part of it
_SECTION = r"^{name}[ ]*:.*\n(?:(?:[ ]*(?:#.*)?\n)*[ ]+[^ \n].*\n|[-\]}}].*\n)*"


def rewrite_section(path: str, name: str, wanted: Mapping[str, Any] | None, *, remark: str) -> bool:
    """Change `speculation` or `alternatives` of a profile file; whether that changed anything.

    All other lines stay, and all comments in a block of the same `method`. An earlier remark with
    the same words, up to a colon, is replaced by this one. The file is replaced only if it then
    says what is wanted. Raises ProfileError for a bad profile, FactError for a file that cannot be
    changed.
    """
    inherited, right = _said(load_profile(path), name) or {}, jsonable(wanted)
    before = read(path).decode("utf-8-sig")
    text = before if before.endswith("\n") or not before else f"{before}\n"
    found = re.search(_SECTION.format(name=name), text, re.M)
    at, end = found.span() if found else (len(text), len(text))
    new, all_keys = None, right
    if right is not None and inherited.get("method") == right.get("method"):
        all_keys = {**dict.fromkeys(inherited), **right}  # what is wanted no more becomes null
        changes = {key: value for key, value in all_keys.items() if inherited.get(key) != value}
        new = _edited(text[at:end], changes)
    new = new or yaml_text({name: all_keys}, flow=True)
    above = re.search(r"(#.*\n)*\Z", text[:at])
    assert above is not None
    earlier = re.escape(comment(remark.split(":", 1)[0]).rstrip())
    kept = re.sub(rf"^{earlier}:.*\n(#   .*\n)*", "", above[0], flags=re.M)
    # its further lines are indented: they go with it
    noted = comment(f"- {remark}").replace("# - ", "# ", 1)
    after = f"{text[: above.start()]}{kept}{noted}{new}{text[end:]}"
    profile, problems = examine(path, data=after.encode())
    if profile and not problems and _said(profile, name) == right:
        if after != before:
            write_named(Path(path).resolve(), after)
        return after != before
    text = f"`{path}` is written in a way that `--write` cannot change"
    raise FactError(text, hint="change it by hand")


def write_alternatives(path: str, added: Mapping[str, Any], *, remark: str) -> None:
    """Write blocks as alternatives, over those of the same name. Raises FactError."""
    whole = {**_said(load_profile(path), "alternatives"), **added}
    rewrite_section(path, "alternatives", whole, remark=remark)


def _said(profile: Profile, name: str) -> Any:
    """What a section says, in JSON's types; None for no speculation."""
    if name == "alternatives":
        return {each: jsonable(block.keys) for each, block in profile.alternatives.items()}
    return jsonable(profile.speculation.keys) if profile.speculation else None


def _edited(old: str, changes: Mapping[str, Any]) -> str | None:
    """The section with values in the place of the old; None where there is no room for them."""
    indent = re.search(r"\n +(?=\w)", old)
    between = indent[0] if indent else ", "
    for key, value in changes.items():
        word, new = rf"\b{re.escape(key)}:", f"{key}: {_inline(value)}"
        place = rf"^([^#\n]*?){word} *(?:\[\[.*?\]\]|\[.*?\]|{{[^{{}}]*}}|[^\s,{{}}#]+)"
        if not re.search(word, old):  # a new one stands first
            place, new = r"\A(\w+ *:(?: *{|.*\n +))", f"{new}{between}"
        parts = re.split(place, old, maxsplit=1, flags=re.M)
        if len(parts) == 1:
            return None
        old = f"{parts[0]}{parts[1]}{new}{parts[-1]}"
    return old
