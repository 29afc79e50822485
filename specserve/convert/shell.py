"""The commands of a shell script with their variables resolved. The script is parsed, and never run.

Source: Bash manual, section 3.5 (expansions). What only a run could know stays a mark (`words.unknown`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING

from specserve.convert.expansion import LONGEST, Expander, Value, as_ascii, name_of, source_of
from specserve.convert.python import number_of
from specserve.convert.words import UNKNOWN, Word, unknown
from specserve.diagnostics import Span

if TYPE_CHECKING:
    from tree_sitter import Node

_CONTINUED = re.compile(r"(?:\\[ \t]*|(?<=[ \t])[\^`][ \t]*)\r?\n")
_COMMENT = re.compile(r"(?<=\\\n)[ \t]*#.*\n")
_PROMPT = re.compile(
    r"^([ \t]*)(?:[\w.-]+@[\w.-]+:\S*[$#] +|[$%] +|[!%](?=[a-z])|> +(?=-|.*(?:vllm|sglang|docker|podman)))",
    re.M,
)
_START = re.compile(r"^.*(?:vllm\s+serve|api_server|launch_server|sglang\s+serve|/vllm|\bvllm-)", re.M)
_HEREDOC = re.compile(r"(?<!<)<<(-?)[ \t]*(['\"]?)(\w+)\2(?!<)(.*)\n((?:.*\n)*?)[ \t]*\3[ \t]*$", re.M)
_REFERENCE = re.compile(r"\\\$|\$(?:(\w+)|\{(\w+)\}|\{(\w+)[^}]*\})")
_MOST_PROSE, _MOST_STEPS, _DEEPEST = 50, 20_000, 30
_COMPARED = {"-eq": eq, "-ne": ne, "-gt": gt, "-ge": ge, "-lt": lt, "-le": le}


@dataclass(slots=True)
class Command:
    """One simple command: its words, the variables exported to it, and what was assumed to read it."""

    words: list[Word]
    exported: dict[str, Word] = field(default_factory=dict)
    notes: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Script:
    commands: list[Command]
    documents: list[Word]
    """Its here-documents."""


def script(
    text: str,
    *,
    file: str,
    line: int = 1,
    positional: list[str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Script:
    """The commands of a script in their order, with assignments, arrays, functions and loops over words resolved.

    `positional`: the words after the script, None if nobody says them. Raises UsageError if it cannot be parsed.
    """
    text = _PROMPT.sub(
        r"\1",
        _COMMENT.sub("\\\n", _CONTINUED.sub("\\\n", text.replace("\r\n", "\n").rstrip(" \t\n\\") + "\n")),
    )
    shell = _Shell(file, line, positional, dict(variables or {}))
    text = _HEREDOC.sub(shell.take_document, text)
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
        command.notes += [(at, said) for name, at, said in shell.assumed if not name or name in shell.read]
    return Script(shell.found, [shell.document(number) for number in dict.fromkeys(shell.given)])


def _parsed(text: str) -> Node:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language())).parse(as_ascii(text)).root_node


def _first_error(node: Node) -> Node:
    while not (node.is_error or node.is_missing):
        node = next(child for child in node.children if child.has_error)
    return node


class _Shell(Expander):
    """The state of one script while its tree is walked."""

    def __init__(self, file: str, line: int, positional: list[str] | None, variables: dict[str, str]) -> None:
        super().__init__(file, line, positional, variables)
        self.exported = set(variables)
        self.functions: dict[str, Node] = {}
        self.found: list[Command] = []
        self.documents: list[Word] = []
        self.plain: list[bool] = []
        self.steps, self.depth = 0, 0

    def take_document(self, match: re.Match[str]) -> str:
        """A here-document out of the text before it is parsed; a mark stands in its place."""
        line = self.line + match.string.count("\n", 0, match.start()) + 1
        self.documents.append(Word(textwrap.dedent(match[5]), Span(self.file, line, 1, line, 1)))
        self.plain.append(bool(match[2]))
        return f" \ue005{len(self.documents) - 1} {match[4]}" + "\n" * match[0].count("\n")

    # Statements: each returns whether it succeeds, None if only a run could tell.

    def run(self, node: Node) -> bool | None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise self.error("it has too many commands")
        special = getattr(self, f"_{node.type}", None)
        if special:
            status: bool | None = special(node)
            return status
        return self._all(node.named_children)

    def _all(self, nodes: Iterable[Node]) -> bool | None:
        status = None
        for node in nodes:
            status = self.run(node)
        return status

    def _list(self, node: Node) -> bool | None:
        left, operator, right = node.children[0], node.children[1].type, node.children[-1]
        status = self.run(left)
        if status is None and operator == "&&" and left.type != "test_command":
            return self.run(right)  # a command is taken to succeed
        if status is None:
            return self._either([[right]], node)
        return self.run(right) if status is (operator == "&&") else status

    def _if_statement(self, node: Node) -> bool | None:
        own = [child for child in node.named_children if not child.type.endswith("_clause")]
        clauses = [own, *(child.named_children for child in node.named_children if child not in own)]
        bodies: list[list[Node]] = []
        for clause in clauses:
            otherwise = clause is not own and clause and clause[0].parent.type == "else_clause"  # type: ignore[union-attr]
            status = True if otherwise else self.run(clause[0])
            body = clause if otherwise else clause[1:]
            if status and not bodies:
                return self._all(body)
            bodies += [body] if status is not False else []
            if status:
                return self._either(bodies, node, whole=True)
        return self._either(bodies, node)

    def _case_statement(self, node: Node) -> bool | None:
        subject, bodies, whole = self.text(node.named_children[0]), [], False
        for item in node.named_children[1:]:
            end = next((at for at, child in enumerate(item.children) if child.type == ")"), 0)
            patterns = [source_of(child).strip("\"'") for child in item.children[:end]]
            if UNKNOWN.search(subject):
                bodies.append(item.children[end + 1 :])
                whole = whole or "*" in patterns
            elif any(fnmatchcase(subject, pattern) for pattern in patterns):
                return self._all(item.children[end + 1 :])
        return self._either(bodies, node, whole=whole)

    def _while_statement(self, node: Node) -> bool | None:
        status = self.run(node.named_children[0]) if node.children[0].type == "while" else None
        body = node.named_children[-1]
        return self._either([[body]], node) if status is None else self.run(body) if status else None

    def _for_statement(self, node: Node) -> None:
        name, *items, body = node.named_children
        for value in [text for item in items for text in self.fields(item)]:
            self.variables[source_of(name)] = value
            self.run(body)

    def _c_style_for_statement(self, node: Node) -> bool | None:
        return self._either([[node.named_children[-1]]], node)

    def _subshell(self, node: Node) -> None:
        before = dict(self.variables)
        self._all(node.named_children)
        self.variables = before

    _pipeline = _subshell

    def _either(self, bodies: list[list[Node]], node: Node, *, whole: bool = False) -> bool | None:
        """Runs what only a run could choose from, each from the same state. `whole`: one of them always runs."""
        before, ends = self.variables, [] if whole else [self.variables]
        for body in bodies:
            self.variables = dict(before)
            self._all(body)
            ends.append(self.variables)
        self.variables = dict(before)
        for name in {name for end in ends for name in end}:
            values = [end.get(name) for end in ends]
            if all(value == values[0] for value in values):
                self.variables[name] = values[0] or ""
            elif whole or name not in before:
                self.variables[name] = unknown(name)
            else:
                row = self.line + node.start_point[0]
                said = f"`{name}` is read without the branch in line {row}, which only a run decides"
                self.assume(said, node.start_point[0], name)
        return None

    def _function_definition(self, node: Node) -> None:
        self.functions[source_of(node.named_children[0])] = node.named_children[-1]

    def _test_command(self, node: Node) -> bool | None:
        inner = node.named_children
        self.testing = True
        status = self._tested(inner[0]) if len(inner) == 1 and node.children[0].type != "((" else None
        self.testing = False
        return status

    def _tested(self, node: Node) -> bool | None:
        """What a test says of texts and numbers; None for a file, or anything that is not known."""
        parts = node.children if node.type in ("unary_expression", "binary_expression") else [node]
        operator = source_of(parts[-2]) if len(parts) > 1 else "-n"
        if operator in ("!", "&&", "||"):
            sides = [self._tested(part) for part in parts if part.is_named]
            if operator == "!":
                return None if sides[0] is None else not sides[0]
            end = operator == "||"
            return end if end in sides else None if None in sides else not end
        texts = [self.text(part) for part in parts if part.is_named and part.type != "test_operator"]
        if UNKNOWN.search("".join(texts)):
            return None
        if operator in ("-z", "-n"):
            return (texts[0] == "") is (operator == "-z")
        numbers = [number_of(text) for text in texts]
        if operator in _COMPARED and len(numbers) == 2 and None not in numbers:
            return bool(_COMPARED[operator](numbers[0] or 0, numbers[1] or 0))
        return fnmatchcase(*texts) is (operator != "!=") if operator in ("=", "==", "!=") else None

    def _redirected_statement(self, node: Node) -> bool | None:
        status = None
        for child in node.named_children:
            count = len(self.found)
            if child.type == "file_redirect":  # `> log --more options`
                targets = [item for item in child.named_children if item.type != "file_descriptor"]
                if self.found:
                    self.found[count - 1].words += [word for item in targets[1:] for word in self.words(item)]
            else:
                status = self.run(child)
        return status

    def document(self, number: int) -> Word:
        """A here-document with its variables."""

        def value(match: re.Match[str]) -> str:
            values = self.values(match[1] or match[2]) if match[1] or match[2] else None
            return (
                "$" if match[0] == "\\$" else " ".join(values or [unknown(match[1] or match[2] or match[3])])
            )

        document = self.documents[number]
        return (
            document if self.plain[number] else replace(document, text=_REFERENCE.sub(value, document.text))
        )

    def _variable_assignment(self, node: Node) -> bool:
        target, *values = node.named_children
        name, before = name_of(target), set(self.read)
        new: Value = self.text(values[0]) if values else ""
        if values and values[0].type == "array":
            new = [text for item in values[0].named_children for text in self.fields(item)]
        if new == "" and values and re.fullmatch(rf"['\"]?\$\{{{name}:?-\}}['\"]?", source_of(values[0])):
            return True  # `X=${X:-}` says that X comes from outside
        if target.type == "subscript":
            new = unknown(name)
        elif node.children[1].type == "+=":
            new = _added(self.variables.get(name, [] if isinstance(new, list) else unknown(name)), new)
        elif isinstance(new, str) and isinstance(old := self.variables.get(name), list):
            new = unknown(name) if UNKNOWN.search("".join(old)) else [new, *old[1:]]
        self.read = self.read - {name} | before  # `X=a:$X` is no use of X
        if sum(map(len, new)) > LONGEST:
            raise self.error(f"`{name}` grows without bounds")
        self.variables[name] = new
        return True

    def _declaration_command(self, node: Node) -> bool:
        before, assigned = self.variables, {}
        for child in node.named_children:
            target = child.named_children[0] if child.type == "variable_assignment" else child
            if target is not child:
                self.variables = dict(before)  # every value is read before the first is set
                self.run(child)
                assigned[name_of(target)] = self.variables[name_of(target)]
            if node.children[0].type == "export":
                self.exported.add(source_of(target))
        self.variables = {**before, **assigned}
        return True

    def _unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.variables.pop(source_of(child), None)

    def _command(self, node: Node) -> bool | None:
        words: list[Word] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                value = "".join(self.text(item) for item in child.named_children[1:])
                words.append(Word(f"{name_of(child.named_children[0])}={value}", self.span(child)))
            elif child.type not in ("file_redirect", "herestring_redirect"):
                words += self.words(child.named_children[0] if child.type == "command_name" else child)
        return self._called(words) if words else None

    def _called(self, words: list[Word]) -> bool | None:
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
            self.found[-1].notes.append((words[0].span.line, said))
        else:
            values = {name: self.variables.get(name) for name in self.exported}
            place = words[0].span
            exported = {name: Word(value, place) for name, value in values.items() if isinstance(value, str)}
            self.found.append(Command(words, exported))
        return {"true": True, ":": True, "false": False}.get(name)

    def printed(self, node: Node) -> str:
        """What `$(echo …)` and `$(cat <<EOF …)` print."""
        variables, found, given = dict(self.variables), self.found, len(self.given)
        self.found = []
        self._all(node.named_children)
        commands, new = [[word.text for word in item.words] for item in self.found], self.given[given:]
        self.variables, self.found = variables, found
        if commands == [["cat"]] and len(new) == 1:
            return self.document(self.given.pop()).text.rstrip("\n")
        plain = len(commands) == 1 and commands[0][0] == "echo" and commands[0][1:2] != ["-e"]
        return " ".join(commands[0][1:]) if plain else unknown("a command")


def _added(old: Value, new: Value) -> Value:
    """What `X+=` makes of a text, `X+=( … )` of an array."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(new, str):
        return [(old[0] if old else "") + new, *old[1:]]
    return [*([old] if isinstance(old, str) else old), *new]
