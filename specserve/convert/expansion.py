"""The words of a command as Bash expands them: variables, parameters, defaults, arrays, quotes.

Source: Bash manual, section 3.5. What only a run could know stays a mark (`words.unknown`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specserve.convert.words import UNKNOWN, Note, Word, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError

if TYPE_CHECKING:
    from tree_sitter import Node

_NOT_ASCII, _FOR_OTHERS = re.compile("[^\x02-\x7f]"), re.compile("\x01([0-9a-f]+)\x01")
_BLANKS = re.compile("[ \t\n]+(?![^\ue000]*\ue001)")  # not within a mark
_ESCAPE, _QUOTED_ESCAPE = re.compile(r"\\(.)", re.S), re.compile(r'\\([\n$`"\\])')
_ALL = re.compile(r'"\$(?:@|\{@\}|\{\w+\[@\]\})"')
_TEXT, _SPLIT, _END = "text", "to be split at blanks", "end of a word"
_COMPUTED = {
    "arithmetic_expansion": "a calculation",
    "command_substitution": "a command",
    "process_substitution": "a command",
    "brace_expression": "a command",
}
_LEAVES = {"word", "string_content", "variable_name", "number", "regex", "test_operator"}
Value = str | list[str]
LONGEST = 100_000
"""Characters of a word, or of a variable."""


class Expander:
    """The variables of a script, and the words made of them."""

    def __init__(self, file: str, line: int, positional: list[str] | None, variables: dict[str, str]) -> None:
        self.file, self.line, self.positional = file, line, positional
        self.variables: dict[str, Value] = {**variables}
        self.read: set[str] = set()
        self.assumed: list[tuple[str, Note]] = []
        """The variable that an assumption is about, and what is assumed."""

    def error(self, what: str) -> UsageError:
        return UsageError(f"`{self.file}` is no shell text: {what}")

    def assume(self, said: str, row: int = 0, name: str = "") -> None:
        assumption = (name, Note("", said, self.line + row))
        if assumption not in self.assumed:
            self.assumed.append(assumption)

    # Words: each piece is a text, a text to be split at blanks, or the end of a word.

    def span(self, node: Node) -> Span:
        (row, column), (end_row, end_column) = node.start_point, node.end_point
        return Span(self.file, self.line + row, column + 1, self.line + end_row, end_column + 1)

    def words(self, node: Node) -> list[Word]:
        return [Word(text, self.span(node)) for text in self.fields(node)]

    def text(self, node: Node) -> str:
        """One text, as in an assignment, where nothing is split."""
        return "".join(" " if kind == _END else text for text, kind in self._pieces(node))

    def fields(self, node: Node) -> list[str]:
        """The words that one word becomes."""
        fields: list[str] = []
        current: str | None = None
        for text, kind in self._pieces(node):
            for at, part in enumerate(_BLANKS.split(text) if kind == _SPLIT else [text]):
                if (at or kind == _END) and current is not None:
                    fields.append(current)
                    current = None
                if part or kind == _TEXT:
                    current = (current or "") + part
        fields += [] if current is None else [current]
        if sum(map(len, fields)) > LONGEST:
            raise self.error("its variables grow without bounds")
        return fields

    def _pieces(self, node: Node, *, quoted: bool = False) -> list[tuple[str, str]]:
        kind, text = node.type, source_of(node)
        if kind == "raw_string":
            return [(text[1:-1], _TEXT)]
        if kind == "ansi_c_string":
            escaped = text[2:-1].encode("latin-1", "backslashreplace")
            return [(escaped.decode("unicode_escape", "replace"), _TEXT)]
        if kind in ("simple_expansion", "expansion"):
            return self._expanded(node, quoted=quoted)
        if kind in _COMPUTED:
            return [(unknown(_COMPUTED[kind]), _TEXT)]
        quoted = quoted or kind in ("string", "translated_string")
        if kind not in _LEAVES and node.children:
            ends = kind == "string" and not _ALL.fullmatch(text)  # `"$@"` of nothing is no word
            return [("", _TEXT)] * ends + self._inside(node, node.children, node.start_byte, quoted=quoted)
        escape = _QUOTED_ESCAPE if quoted else _ESCAPE
        return [(escape.sub(lambda match: match[1].strip("\n"), text), _TEXT)]

    def _inside(self, node: Node, children: list[Node], at: int, *, quoted: bool) -> list[tuple[str, str]]:
        """The pieces of some children with the blanks between them."""
        pieces: list[tuple[str, str]] = []
        kind, whole = _TEXT if quoted else _SPLIT, node.text or b""
        for child in children:
            gap = _as_written(whole[at - node.start_byte : child.start_byte - node.start_byte])
            pieces += [(gap, kind)] * bool(gap)
            if child.type not in ('"', '$"'):
                pieces += self._pieces(child, quoted=quoted)
            at = child.end_byte
        gap = _as_written(whole[at - node.start_byte :]) if children == node.children else ""
        return [*pieces, *[(gap, kind)] * bool(gap)]

    def _expanded(self, node: Node, *, quoted: bool) -> list[tuple[str, str]]:
        """`$X`, `${X:-…}`, `"${A[@]}"` and their like."""
        target, *rest = [child for child in node.children if child.type not in ("$", "${", "}")] or [node]
        operator = rest.pop(0).type if rest else ""
        name = name_of(target)
        index = source_of(target.named_children[1]) if target.type == "subscript" else ""
        values = self.values(name)
        if values is None and name == "HOME" and node.parent and _begins(node):
            values = ["~"]  # a profile is for whoever runs it
        every = name in ("@", "*") or index in ("@", "*")
        if index.isdigit() and values is not None:
            values = _at(values, int(index))
        elif not every and values is not None:
            values = [unknown(f"{name}[{index}]")] if index else values[:1] or [""]
        kind = _TEXT if quoted else _SPLIT
        unset = values is None or (operator.startswith(":") and values in ([], [""]))
        if operator == ":+" and UNKNOWN.search("".join(values or [])):
            return [(unknown(name), kind)]
        if operator.strip(":") in ("-", "=", "+"):
            if unset is (operator[-1] == "+"):
                return [] if unset else self._kept(values or [], name, index, kind)
            start = node.start_byte + (node.text or b"").index(operator.encode()) + len(operator)
            pieces = self._inside(node, rest, start, quoted=quoted)
            if not re.search("['\"]", source_of(node)):
                pieces = [(text, kind) for text, _ in pieces]
            if operator[-1] == "=":
                self.variables[name] = "".join(text for text, _ in pieces)
            return pieces
        if operator.strip(":") != "?" and operator:
            values = [unknown(name)]
        return self._kept([unknown(name)] if values is None else values, name, index, kind)

    def _kept(self, values: list[str], name: str, index: str, kind: str) -> list[tuple[str, str]]:
        """Values as one word each, or all in one for a quoted `*`."""
        if "*" in (name, index) and kind == _TEXT:
            return [(" ".join(values), _TEXT)]
        ends = [("", _END)] * len(values)
        return [piece for value, end in zip(values, ends, strict=True) for piece in ((value, kind), end)][:-1]

    def values(self, name: str) -> list[str] | None:
        """The values of a variable or parameter; None if the text does not set it."""
        self.read.add(name)
        if name in ("@", "*"):
            if self.positional is None:
                self.assume(f"the script's own arguments, `${name}`, are taken as none")
            return self.positional or []
        if name == "#":
            return [str(len(self.positional or []))]
        if name.isdigit():
            return _at(self.positional or [], int(name) - 1) or None if name != "0" else None
        value = self.variables.get(name)
        return [value] if isinstance(value, str) else value


def as_ascii(text: str) -> bytes:
    """A text for the parser, which dies of some other characters (tree-sitter/tree-sitter-bash#337)."""
    return _NOT_ASCII.sub(lambda match: f"\x01{ord(match[0]):x}\x01", text).encode()


def _as_written(data: bytes) -> str:
    """The text that `as_ascii` made this of."""
    return _FOR_OTHERS.sub(lambda match: chr(int(match[1], 16)), data.decode())


def source_of(node: Node) -> str:
    """The text of a node."""
    return _as_written(node.text or b"")


def name_of(node: Node) -> str:
    return source_of(node.named_children[0] if node.type == "subscript" else node)


def _at(values: list[str], index: int) -> list[str]:
    """The value at a place, which nobody knows behind one that may be several or none."""
    return [item for item in values[: index + 1] if UNKNOWN.search(item)][:1] or values[index : index + 1]


def _begins(node: Node) -> bool:
    """Whether a word begins here: nothing but a quote stands before it."""
    before, around = node.prev_sibling, node.parent
    if before is not None and before.type == '"' and around is not None:
        before, around = around.prev_sibling, around.parent
    return around is None or around.type != "concatenation" or before is None
