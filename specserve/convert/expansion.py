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
_ESCAPE, _QUOTED_ESCAPE = re.compile(r"\\(.)", re.S), re.compile(r'\\([\n$`"\\])')
_ALL = re.compile(r'"\$(?:@|\{@\}|\{\w+\[@\]\})"')
_KEPT, _END = "\ue010", "\ue011"
"""In a text that is not split yet: here is a word, though it may be empty; here a word ends."""
_BLANKS = {ord(" "): "\ue012", ord("\t"): "\ue013", ord("\n"): "\ue014"}
"""The blanks at which a word is split, as opposed to those in quotes."""
_NO_SPLIT = {ord(mark): chr(blank) for blank, mark in _BLANKS.items()} | {ord(_KEPT): "", ord(_END): " "}
_WORD = re.compile(f"[^{_END}-\ue014]+")
_HOME = re.compile(f"^{unknown('HOME')}(?=/|$)")
_COMPUTED = ("arithmetic_expansion", "command_substitution", "process_substitution", "brace_expression")
_LEAVES = ("word", "string_content", "variable_name", "number", "regex", "test_operator")
_LONGEST = 100_000
"""Characters of a word."""
Value = str | list[str]


class Expander:
    """The variables of a script, and the words made of them."""

    def __init__(self, file: str, line: int, positional: list[str] | None, variables: dict[str, str]) -> None:
        self.file, self.line, self.positional = file, line, positional
        self.variables: dict[str, Value] = {**variables}
        self.assumed: list[Note] = []

    def error(self, what: str) -> UsageError:
        return UsageError(f"`{self.file}` is no shell text: {what}")

    def assume(self, said: str, row: int = 0) -> None:
        note = Note("", said, self.line + row)
        self.assumed += [note] * (note not in self.assumed)

    def span(self, node: Node) -> Span:
        (row, column), (end_row, end_column) = node.start_point, node.end_point
        return Span(self.file, self.line + row, column + 1, self.line + end_row, end_column + 1)

    def words(self, node: Node) -> list[Word]:
        """The words that one word becomes."""
        return [Word(text, self.span(node)) for text in self.fields(node)]

    def fields(self, node: Node) -> list[str]:
        """The texts of these words."""
        return [_finished(text) for text in _WORD.findall(self._bounded(node))]

    def text(self, node: Node) -> str:
        """One text, as in an assignment, where nothing is split."""
        return _finished(self._bounded(node))

    def _bounded(self, node: Node) -> str:
        text = self._expanded(node)
        if len(text) > _LONGEST:
            raise self.error("its variables grow without bounds")
        return text

    def _expanded(self, node: Node, *, quoted: bool = False) -> str:
        kind, text = node.type, source_of(node)
        if kind == "raw_string":
            return _KEPT + text[1:-1]
        if kind == "ansi_c_string":
            escaped = text[2:-1].encode("latin-1", "backslashreplace")
            return _KEPT + escaped.decode("unicode_escape", "replace")
        if kind in ("simple_expansion", "expansion"):
            return self._parameter(node, quoted=quoted)
        if kind in _COMPUTED:
            return unknown("a command")
        if kind in _LEAVES or not node.children:
            escape = _QUOTED_ESCAPE if quoted else _ESCAPE
            return escape.sub(lambda match: match[1].strip("\n"), text)
        kept = _KEPT if kind == "string" and not _ALL.fullmatch(text) else ""  # `"$@"` of nothing is no word
        quoted = quoted or kind in ("string", "translated_string")
        return kept + self._inside(node, node.children, node.start_byte, quoted=quoted)

    def _inside(self, node: Node, children: list[Node], at: int, *, quoted: bool) -> str:
        """Some children with the blanks between them."""
        text, whole = "", node.text or b""
        for child in [*children, None]:
            if child is None and children != node.children:
                break
            end = child.start_byte if child else node.end_byte
            gap = _as_written(whole[at - node.start_byte : end - node.start_byte])
            text += gap if quoted else gap.translate(_BLANKS)
            if child is not None:
                text += "" if child.type in ('"', '$"') else self._expanded(child, quoted=quoted)
                at = child.end_byte
        return text

    def _parameter(self, node: Node, *, quoted: bool) -> str:
        """`$X`, `${X:-…}`, `"${A[@]}"` and their like."""
        target, *rest = [child for child in node.children if child.type not in ("$", "${", "}")] or [node]
        operator = rest.pop(0).type if rest else ""
        name, kind = name_of(target), operator.strip(":")
        index = source_of(target.named_children[1]) if target.type == "subscript" else ""
        values = self.values(name)
        if index.isdigit() and values is not None:
            values = _at(values, int(index))
        elif not {"@", "*"} & {name, index} and values is not None:
            values = [unknown(f"{name}[{index}]")] if index else values[:1] or [""]
        unset = values is None or (operator.startswith(":") and values in ([], [""]))
        if operator == ":+" and UNKNOWN.search("".join(values or [])):
            return unknown(name)
        if kind in ("-", "=", "+") and unset is (kind != "+"):
            start = node.start_byte + (node.text or b"").index(operator.encode()) + len(operator)
            text = self._inside(node, rest, start, quoted=quoted)
            if not quoted and not re.search("['\"]", source_of(node)):
                text = text.translate(_BLANKS)
            if kind == "=":
                self.variables[name] = _finished(text)
            return text
        if kind == "+":
            return ""
        if values is None or kind not in ("", "-", "=", "?"):
            values = [unknown(name)]
        if quoted:
            return " ".join(values) if "*" in (name, index) else _END.join(_KEPT + item for item in values)
        return _END.join(item.translate(_BLANKS) for item in values)

    def values(self, name: str) -> list[str] | None:
        """The values of a variable or parameter; None if the text does not set it."""
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


def _finished(text: str) -> str:
    """A word without the marks of this module; a home folder is that of whoever runs the profile."""
    return _HOME.sub("~", text.translate(_NO_SPLIT))


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
