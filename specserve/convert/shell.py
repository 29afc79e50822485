"""The commands of a shell script with their variables resolved. The script is parsed, and never run.

Source: Bash manual, section 3.5 (expansions). What only a run could know stays a mark (`words.unknown`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specserve.convert.expansion import LONGEST, Expander, Value, as_ascii, name_of, source_of
from specserve.convert.words import UNKNOWN, Note, Word, unknown

if TYPE_CHECKING:
    from tree_sitter import Node

_CONTINUED = re.compile(r"(?:\\[ \t]*|(?<=[ \t])[\^`][ \t]*)\r?\n")
_COMMENT = re.compile(r"(?<=\\\n)[ \t]*#.*\n")
_PROMPT = re.compile(
    r"^([ \t]*)(?:[\w.-]+@[\w.-]+:\S*[$#] +|[$%] +|[!%](?=[a-z])|> +(?=-|.*(?:vllm|sglang|docker|podman)))",
    re.M,
)
_START = re.compile(r"^.*(?:vllm\s+serve|api_server|launch_server|sglang\s+serve|/vllm|\bvllm-)", re.M)
_MOST_PROSE, _MOST_STEPS, _DEEPEST = 50, 20_000, 30


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
        if not any(_START.search(" ".join(word.text for word in item.words)) for item in shell.found):
            for body in list(shell.functions.values()):  # a library of functions that another file calls
                shell.run(body)
    except RecursionError as error:
        raise shell.error("it is nested too deeply") from error
    for command in shell.found:
        command.notes += [note for name, note in shell.assumed if not name or name in shell.read]
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
        self.steps, self.depth = 0, 0

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
            self._choose([[right]], node)

    def _if_statement(self, node: Node) -> None:
        own = [child for child in node.named_children if not child.type.endswith("_clause")]
        others = [child for child in node.named_children if child not in own]
        bodies = [own, *(child.named_children for child in others)]
        self._choose(bodies, node, whole=node.children[-2].type == "else_clause")

    def _case_statement(self, node: Node) -> None:
        items = node.named_children[1:]
        ends = [
            next((at for at, child in enumerate(item.children) if child.type == ")"), 0) for item in items
        ]
        bodies = [item.children[end + 1 :] for item, end in zip(items, ends, strict=True)]
        self._choose(bodies, node, whole=any(source_of(item).startswith("*)") for item in items))

    def _while_statement(self, node: Node) -> None:
        self._choose([node.named_children], node)

    _c_style_for_statement = _while_statement

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

    def _choose(self, bodies: list[list[Node]], node: Node, *, whole: bool = False) -> None:
        """Runs what only a run could choose from, each from the same state. `whole`: one of them always runs."""
        before, positional, ends, shifted = self.variables, self.positional, [], False
        for body in bodies:
            self.variables, self.positional = dict(before), positional
            self._all(body)
            ends.append(self.variables)
            shifted = shifted or self.positional != positional
        self.variables, self.positional = dict(before), positional
        row = node.start_point[0]
        decided = f"the branch in line {self.line + row}, which only a run decides"
        if shifted and positional:
            self.assume(f"the script's own arguments are read without {decided}", row)
        for name in dict.fromkeys(name for end in ends for name in end):
            old, values = before.get(name), [end.get(name) for end in ends]
            said = [value for value in values if value is not None and not UNKNOWN.search("".join(value))]
            if all(value == old for value in values):
                continue
            if whole or (old is None and said):
                same = all(value == said[0] for value in said) and (len(said) == len(ends) or not whole)
                self.variables[name] = said[0] if same else unknown(name)
            if not whole:
                how = "without" if self.variables.get(name) == old else "with"
                self.assume(f"`{name}` is read {how} {decided}", row, name)

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
        target, *values = node.named_children
        name, before = name_of(target), set(self.read)
        new: Value = self.text(values[0]) if values else ""
        if values and values[0].type == "array":
            new = [text for item in values[0].named_children for text in self.fields(item)]
        if new == "" and values and re.fullmatch(rf"['\"]?\$\{{{name}:?-\}}['\"]?", source_of(values[0])):
            return  # `X=${X:-}` says that X comes from outside
        if target.type == "subscript":
            new = unknown(name)
        elif node.children[1].type == "+=":
            new = _added(self.variables.get(name, [] if isinstance(new, list) else unknown(name)), new)
        elif isinstance(new, str) and isinstance(old := self.variables.get(name), list):
            new = [new, *([unknown(name)] if UNKNOWN.search("".join(old)) else old[1:])]
        self.read = self.read - {name} | before  # `X=a:$X` is no use of X
        if sum(map(len, new)) > LONGEST:
            raise self.error(f"`{name}` grows without bounds")
        self.variables[name] = new

    def _declaration_command(self, node: Node) -> None:
        before, assigned = self.variables, {}
        for child in node.named_children:
            target = child.named_children[0] if child.type == "variable_assignment" else child
            if target is not child:
                self.variables = dict(before)  # every value is read before the first is set
                self.run(child)
                assigned[name_of(target)] = self.variables[name_of(target)]
            if node.children[0].type == "export":
                self.exported[source_of(target)] = None
        self.variables = {**before, **assigned}

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
        nested = name in self.functions or name == "eval"
        if nested and self.depth < _DEEPEST:
            line, positional = self.line, self.positional
            self.depth += 1
            if name == "eval":
                self.line = words[0].span.line
                self.run(_parsed(" ".join(texts)))
            else:
                self.positional = texts
                self.run(self.functions[name])
            self.depth -= 1
            self.line, self.positional = line, positional
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
