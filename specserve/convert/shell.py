"""The commands of a shell script with their variables resolved. The script is parsed, and never run.

Source: Bash manual, section 3.5 (expansions). What only a run could know stays a mark (`words.unknown`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specserve.convert.expansion import Expander, Value, as_ascii, name_of, source_of
from specserve.convert.words import UNKNOWN, Note, Word, placeholder, unknown

if TYPE_CHECKING:
    from tree_sitter import Node

_CONTINUED = re.compile(r"(?:\\[ \t]*|(?<=[ \t])[\^`][ \t]*)\r?\n")
_COMMENT = re.compile(r"(?<=\\\n)[ \t]*#.*\n")
_PROMPT = re.compile(
    r"^([ \t]*)(?:[\w.-]+@[\w.-]+:\S*[$#] +|[$%] +|[!%](?=[a-z])|> +(?=-|.*(?:vllm|sglang|docker|podman)))",
    re.M,
)
_START = re.compile(r"^.*(?:vllm\s+serve|api_server|launch_server|sglang\s+serve|/vllm|\bvllm-)", re.M)
_UNQUOTED = re.compile(r"^[^'\"#\n]+", re.M)
_PLACEHOLDER = re.compile(r"(?<=[\s=/:])<(\w[\w.:/-]*)>(?=[\s/:]|$)")
"""What a shell would take for two redirections: `--port <port>`."""
_MOST_PROSE, _MOST_STEPS = 50, 20_000


@dataclass(slots=True)
class Command:
    """One simple command: its words, the variables exported to it, and what was assumed to read it."""

    words: list[Word]
    exported: dict[str, Word] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def script(
    text: str,
    *,
    file: str,
    line: int = 1,
    positional: list[str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> list[Command]:
    """The commands of a script in their order, with assignments, arrays, functions and loops over words resolved.

    `positional`: the words after the script, None if nobody says them. Raises UsageError if it cannot be parsed.
    """
    text = _CONTINUED.sub("\\\n", text.replace("\r\n", "\n").rstrip(" \t\n\\") + "\n")
    text = _PROMPT.sub(r"\1", _COMMENT.sub("\\\n", text))
    text = _UNQUOTED.sub(lambda part: _PLACEHOLDER.sub(lambda name: placeholder(name[1]), part[0]), text)
    shell = _Shell(file, line, positional, dict(variables or {}))
    root = _parsed(text)
    for _ in range(_MOST_PROSE):  # prose around a command may hold an apostrophe
        if not root.has_error:
            break
        lines, row = text.split("\n"), _first_error(root).start_point[0]
        if _START.search(lines[row]) or (row and lines[row - 1].endswith("\\")):
            break
        shell.assume("this line is left out: no shell can read it", row)
        text = "\n".join([*lines[:row], "", *lines[row + 1 :]])
        root = _parsed(text)
    try:
        if root.has_error:
            raise shell.error(f"line {line + _first_error(root).start_point[0]} cannot be parsed")
        shell.run(root)
    except RecursionError as error:
        raise shell.error("it is nested too deeply") from error
    for command in shell.found:
        command.notes += shell.assumed
    return shell.found


def _parsed(text: str) -> Node:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language())).parse(as_ascii(text)).root_node


def _first_error(node: Node) -> Node:
    """The innermost first node that the grammar could not read; an inner one may bear no mark of its own."""
    while not (node.is_error or node.is_missing):
        wrong = next((child for child in node.children if child.has_error), None)
        if wrong is None:
            break
        node = wrong
    return node


class _Shell(Expander):
    """The state of one script while its tree is walked."""

    def __init__(self, file: str, line: int, positional: list[str] | None, variables: dict[str, str]) -> None:
        super().__init__(file, line, positional, variables)
        self.exported = dict.fromkeys(variables)
        self.functions: dict[str, Node] = {}
        self.found: list[Command] = []
        self.steps = 0

    def run(self, node: Node) -> None:
        """Walks one statement."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise self.error("it has too many commands")
        special = getattr(self, f"_{node.type}", None)
        if special:
            special(node)
        else:
            self._all(node.named_children)

    def _all(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.run(node)

    def _list(self, node: Node) -> None:
        left, operator, right = node.children[0], node.children[1].type, node.children[-1]
        self.run(left)
        if operator == "&&" and left.type != "test_command":
            self.run(right)  # a command is taken to succeed
        else:
            self._choose([[right]])

    def _if_statement(self, node: Node) -> None:
        clauses = [child for child in node.named_children if child.type.endswith("_clause")]
        own = [child for child in node.named_children if child not in clauses]
        self._choose([own, *(clause.named_children for clause in clauses)])

    def _case_statement(self, node: Node) -> None:
        self._choose([item.named_children for item in node.named_children[1:]])

    def _while_statement(self, node: Node) -> None:
        self._choose([node.named_children])

    _c_style_for_statement = _while_statement

    def _choose(self, bodies: list[list[Node]]) -> None:
        """Runs what only a run could choose from, each from the same state; what one of them sets is open."""
        before, positional = self.variables, self.positional
        changed: dict[str, Value] = {}
        shifted = positional
        for body in bodies:
            self.variables, self.positional = dict(before), positional
            self._all(body)
            names = before.keys() | self.variables.keys()
            changed |= {name: unknown(name) for name in names if self.variables.get(name) != before.get(name)}
            shifted = self.positional if self.positional != positional else shifted
        self.variables = {**before, **changed}
        self.positional = positional if shifted == positional else [unknown("@")]

    def _test_command(self, node: Node) -> None:
        """Only a run could tell what a test says."""

    def _for_statement(self, node: Node) -> None:
        name, *items, body = node.named_children
        for value in [text for item in items for text in self.fields(item)]:
            self.variables[source_of(name)] = value
            self.run(body)

    def _subshell(self, node: Node) -> None:
        before = dict(self.variables)
        self._all(node.named_children)
        self.variables = before

    _pipeline = _subshell

    def _function_definition(self, node: Node) -> None:
        self.functions[source_of(node.named_children[0])] = node.named_children[-1]

    def _redirected_statement(self, node: Node) -> None:
        for child in node.named_children:
            if child.type != "file_redirect":
                self.run(child)
            elif self.found:  # `> log --more options`
                targets = [item for item in child.named_children if item.type != "file_descriptor"]
                self.found[-1].words += [word for item in targets[1:] for word in self.words(item)]

    def _variable_assignment(self, node: Node) -> None:
        self.variables |= [self._assigned(node)]

    def _assigned(self, node: Node) -> tuple[str, Value]:
        """The name that an assignment sets, and its value."""
        target, *values = node.named_children
        name = name_of(target)
        new: Value = self.text(values[0]) if values else ""
        if values and values[0].type == "array":
            new = [text for item in values[0].named_children for text in self.fields(item)]
        comes_from_outside = re.fullmatch(rf"\w+\+?=['\"]?\$\{{{name}:?-\}}['\"]?", source_of(node))
        if target.type == "subscript" or (comes_from_outside and not new):
            return name, unknown(name)
        old = self.variables.get(name)
        if node.children[1].type == "+=":
            unset: Value = [] if isinstance(new, list) else unknown(name)
            return name, _added(unset if old is None else old, new)
        if isinstance(new, str) and isinstance(old, list):
            return name, [new, *([unknown(name)] if UNKNOWN.search("".join(old)) else old[1:])]
        return name, new

    def _declaration_command(self, node: Node) -> None:
        assigned = [child for child in node.named_children if child.type == "variable_assignment"]
        if node.children[0].type == "export":
            targets = [
                child.named_children[0] if child in assigned else child for child in node.named_children
            ]
            self.exported |= dict.fromkeys(source_of(target) for target in targets)
        self.variables |= [self._assigned(child) for child in assigned]

    def _unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.variables.pop(source_of(child), None)

    def _command(self, node: Node) -> None:
        words: list[Word] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                value = "".join(self.text(item) for item in child.named_children[1:])
                words.append(Word(f"{name_of(child.named_children[0])}={value}", self.span(child)))
            elif child.type not in ("file_redirect", "herestring_redirect"):
                words += self.words(child.named_children[0] if child.type == "command_name" else child)
        if words:
            self._called(words)

    def _called(self, words: list[Word]) -> None:
        """What a command does to the script's own state; every other command is kept."""
        name, texts = words[0].text, [word.text for word in words[1:]]
        line, positional = self.line, self.positional
        if name in self.functions:
            self.positional = texts
            self.run(self.functions[name])
            self.positional = positional
        elif name == "eval":
            self.line = words[0].span.line
            self.run(_parsed(" ".join(texts)))
            self.line = line
        elif name == "set" and texts[:1] == ["--"]:
            self.positional = texts[1:]
        elif name == "shift":
            self.positional = self.positional[1:] if self.positional else self.positional
        elif name == "read":
            self.variables |= {text: unknown(text) for text in texts}
        elif name.startswith("-") and self.found:
            said = f"`{name}` belongs to the command above, though no `\\` ends the line before"
            self.found[-1].words += words
            self.found[-1].notes.append(Note("", said, words[0].span.line))
        else:
            values = {name: self.variables.get(name) for name in self.exported}
            place = words[0].span
            exported = {name: Word(value, place) for name, value in values.items() if isinstance(value, str)}
            self.found.append(Command(words, exported))


def _added(old: Value, new: Value) -> Value:
    """What `X+=` makes of a text, `X+=( … )` of an array."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(new, str):
        return [(old[0] if old else "") + new, *old[1:]]
    return [*([old] if isinstance(old, str) else old), *new]
