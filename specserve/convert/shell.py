"""The commands of a shell script with their variables resolved; the script is never run.

Source: Bash manual, section 3.5 (expansions). What only a run could know stays a mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from specserve.convert.words import UNKNOWN, Note, Word, mark, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError

if TYPE_CHECKING:
    from tree_sitter import Node

_CONTINUED = re.compile(r"(?:\\[ \t]*|(?<=[ \t])[\^`][ \t]*)\r?\n")
_QUOTE_IN_BRACKET = re.compile(r"(?<=\[)[!^]?\$?'[^'\n]*'(?=[^\]\n]*\][^\n]*\))")
"""In a pattern of `case`: Bash reads `[!$' \\t']`, the grammar does not."""
_PROMPT = re.compile(r"^[ \t]*[$%] +", re.M)
_UNQUOTED = re.compile(r"^[^'\"#\n]+", re.M)
_PLACEHOLDER = re.compile(r"(?<=[\s=/:])<(\w[\w.:/-]*)>(?=[\s/:]|$)")
"""What a shell would take for two redirections: `--port <port>`."""
_MOST_STEPS, _LONGEST_WORD = 20_000, 100_000
_PARTS = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*"|['"])+""")  # of a text, a quoted one whole
_OWN_ARGUMENTS = re.compile(r"\$[#@*1]|\bgetopts\b")
_NOT_ASCII = re.compile("[^\x02-\x7f]")
_ESCAPE, _QUOTED_ESCAPE = re.compile(r"\\(.)", re.S), re.compile(r'\\([\n$`"\\])')
_ALL = re.compile(r'"\$(?:@|\{@\}|\{\w+\[@\]\})"')
_KEPT, _END = "\ue010", "\ue011"
"""In a text that is not split yet: here is a word, though it may be empty; here a word ends."""
_BLANKS = {ord(" "): "\ue012", ord("\t"): "\ue013", ord("\n"): "\ue014"}
"""The blanks at which a word is split, as opposed to those in quotes."""
_NO_SPLIT = {ord(blank): chr(mark) for mark, blank in _BLANKS.items()}
_NO_SPLIT |= {ord(_KEPT): "", ord(_END): " "}
_WORD = re.compile(f"[^{_END}-\ue014]+")
_HOME = re.compile(f"^{unknown('HOME')}(?=/|$)")
_COMPUTED = frozenset(
    "arithmetic_expansion command_substitution process_substitution brace_expression "
    "ansi_c_string".split()
)
_LEAVES = ("word", "string_content", "variable_name", "number", "regex", "test_operator")
Value = str | list[str]
_Bodies = list[tuple[str, list["Node"]]]


@dataclass(slots=True)
class Command:
    """One simple command: its words, the variables exported to it, and what was assumed."""

    words: list[Word]
    exported: dict[str, Word] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    condition: str = ""  # when the script runs it, in its words; empty: always
    function: str = ""  # in which it stands, if nothing in the script calls that


def script(
    text: str,
    *,
    file: str,
    line: int = 1,
    positional: list[str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> list[Command]:
    """The commands of a script in order: variables, arrays, functions and loops are resolved.

    `positional`: the words after the script, None if nobody says them. Raises UsageError if it
    cannot be parsed.
    """
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    text = _CONTINUED.sub("\\\n", text.replace("\r\n", "\n").rstrip(" \t\n\\") + "\n")
    text = _UNQUOTED.sub(
        lambda part: _PLACEHOLDER.sub(lambda one: mark(f"<{one[1]}>"), part[0]),
        _PROMPT.sub("", text),
    )
    # the parser dies of some other characters (tree-sitter/tree-sitter-bash#337); in their place it
    # gets one that no name has, so that each byte of its places is a character of the text
    data = _QUOTE_IN_BRACKET.sub(lambda found: "." * len(found[0]), _NOT_ASCII.sub(".", text))
    root = Parser(Language(tree_sitter_bash.language())).parse(data.encode()).root_node
    given: dict[str, Value] = {**(variables or {})}
    shell = _Shell(text, file, line, positional, given, dict.fromkeys(given))
    if root.has_error:
        bad = root
        while inner := [child for child in bad.children if child.has_error]:
            bad = inner[0]
        raise shell.error(f"line {line + bad.start_point[0]} cannot be parsed")
    try:
        shell.run(root)
        called = len(shell.found)
        for name in [name for name in shell.functions if name not in shell.called]:
            shell.run(shell.functions[name])
            for command in shell.found[called:]:
                command.function = command.function or name
    except RecursionError as error:
        raise shell.error("it is nested too deeply") from error
    if shell.defaults:
        names = ", ".join(f"`${name}`" for name in shell.defaults)
        said = f"the profile has the script's defaults of {names}, not the environment's"
        shell.assumed[said] = None
    for command in shell.found:
        command.notes += [Note("", said, line) for said in shell.assumed]
    return shell.found


@dataclass(slots=True)
class _Shell:
    """The state of one script while its tree is walked: variables, functions, commands found."""

    text: str
    file: str
    line: int
    positional: list[str] | None
    variables: dict[str, Value]
    exported: dict[str, None]
    places: dict[str, Span] = field(default_factory=dict)
    functions: dict[str, Node] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    condition: str = ""
    found: list[Command] = field(default_factory=list)
    assumed: dict[str, None] = field(default_factory=dict)
    defaults: dict[str, None] = field(default_factory=dict)  # variables that have their default
    empty: set[str] = field(default_factory=set)  # those whose default is empty
    steps: int = 0

    def error(self, what: str) -> UsageError:
        return UsageError(f"cannot read `{self.file}` as a shell script: {what}")

    def source(self, node: Node) -> str:
        """The text of a node."""
        return self.text[node.start_byte : node.end_byte]

    def name(self, node: Node) -> str:
        """The variable of `X` or `X[1]`."""
        return self.source(node.named_children[0] if node.type == "subscript" else node)

    def span(self, node: Node) -> Span:
        (row, column), (end_row, end_column) = node.start_point, node.end_point
        return Span(self.file, self.line + row, column + 1, self.line + end_row, end_column + 1)

    def run(self, node: Node) -> None:
        """Walks one statement."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise self.error("the script has too many commands")
        walk = getattr(self, f"_{node.type}", None)
        if walk:
            walk(node)
        elif node.type != "test_command":  # only a run could tell what a test says
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
            said = self.source(left)
            self._choose([(said if operator == "&&" else f"{said} fails", [right])])

    def _if_statement(self, node: Node) -> None:
        bodies: _Bodies = []
        for part in (node, *(child for child in node.children if child.type.endswith("_clause"))):
            own = [child for child in part.children if not child.type.endswith("_clause")]
            then = next((at for at, child in enumerate(own) if child.type == "then"), 0)
            said = [child for child in own[1:then] if child.is_named]
            self._all(child for child in said if not child.type.startswith("test"))
            bodies.append((" ".join(map(self.source, said)), own[then:]))
        self._choose(bodies)

    def _case_statement(self, node: Node) -> None:
        subject, *items = [child for child in node.named_children if child.type != "comment"]
        bodies: _Bodies = []
        for item in items:
            close = next(at for at, child in enumerate(item.children) if child.type == ")")
            pattern = "".join(map(self.source, item.children[:close]))
            said = "" if pattern == "*" else f"{self.source(subject)} is {pattern}"
            bodies.append((said, item.children[close:]))
        self._choose(bodies, f"{self.source(subject)} is something else")

    def _while_statement(self, node: Node) -> None:
        said = "".join(map(self.source, node.children[1:-1])).strip("; ")
        self._all(one for one in node.children[1:-1] if one.is_named and "test" not in one.type)
        if _OWN_ARGUMENTS.search(said) and not self.positional:
            self.assumed["the script's own arguments are taken as empty"] = None
        else:
            self._choose([(said, node.children[-1:])])

    _c_style_for_statement = _while_statement

    def _choose(self, bodies: _Bodies, otherwise: str = "") -> None:
        """Runs what only a run could choose from, each from the same state under its condition.

        The last one may have none: it runs if no other holds, which is `otherwise` in words.
        """
        before, outer = self.variables, self.condition
        ends: list[tuple[str, dict[str, Value]]] = []
        others = " and ".join(f"{' '.join(said.split())} fails" for said, _ in bodies if said)
        others = others.removesuffix(" fails fails") or others
        for said, body in bodies if not bodies[-1][0] else [*bodies, ("", [])]:
            self.variables = dict(before)
            condition = " ".join(said.split()) or otherwise or others
            self.condition = " and ".join(filter(None, (outer, condition)))
            self._all(child for child in body if child.is_named)
            ends.append((condition, self.variables))
        names = {name for _, after in ends for name in after if after[name] != before.get(name)}
        self.variables, self.condition = dict(before), outer
        for name in names:
            self.variables[name] = _either(name, [(said, after.get(name)) for said, after in ends])

    def _for_statement(self, node: Node) -> None:
        name, *items, body = [child for child in node.named_children if child.type != "comment"]
        for value in [text for item in items for text in self.fields(item)]:
            self.variables[self.source(name)] = value
            self.run(body)

    def _subshell(self, node: Node) -> None:
        before = dict(self.variables)
        self._all(node.named_children)
        self.variables = before

    _pipeline = _subshell

    def _function_definition(self, node: Node) -> None:
        self.functions[self.source(node.named_children[0])] = node.named_children[-1]

    def _redirected_statement(self, node: Node) -> None:
        for child in node.named_children:
            if child.type != "file_redirect":
                self.run(child)
            elif self.found:  # `> log --more options`
                targets = [item for item in child.named_children if item.type != "file_descriptor"]
                for item in targets[1:]:
                    self.found[-1].words += self.words(item)

    def _variable_assignment(self, node: Node) -> None:
        target, *values = node.named_children
        name = self.name(target)
        self.places[name] = self.span(node)
        new: Value = _finished(self._bounded(values[0])) if values else ""
        if values and values[0].type == "array":
            items = [item for item in values[0].named_children if item.type != "comment"]
            new = [text for item in items for text in self.fields(item)]
        old = self.variables.get(name)
        if target.type == "subscript":
            new = unknown(name)
        elif node.children[1].type == "+=":
            new = _added(([] if isinstance(new, list) else "") if old is None else old, new)
        elif isinstance(new, str) and isinstance(old, list):
            new = [new, *([unknown(name)] if UNKNOWN.search("".join(old)) else old[1:])]
        self.variables[name] = new
        if not new and name in self.empty:  # `X=${X:-}`
            del self.variables[name]

    def _declaration_command(self, node: Node) -> None:
        before, after = self.variables, dict(self.variables)
        for child in node.named_children:
            is_assigned = child.type == "variable_assignment"
            name = self.source(child.named_children[0] if is_assigned else child)
            if is_assigned:  # Bash expands all of them first
                self.variables = dict(before)
                self.run(child)
                after |= {key: value for key, value in self.variables.items() if key == name}
            if child.type in _COMPUTED:
                said = f"the variables that `{self.source(node)}` sets are left out"
                self.assumed[said] = None
            if node.children[0].type == "export":
                self.exported[name] = None
        self.variables = after

    def _unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.variables.pop(self.source(child), None)

    def _command(self, node: Node) -> None:
        words: list[Word] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, *values = child.named_children
                text = "".join(_finished(self._bounded(one)) for one in values)
                words.append(Word(f"{self.name(name)}={text}", self.span(child)))
            elif child.type not in ("file_redirect", "herestring_redirect", "comment"):
                is_name = child.type == "command_name"
                words += self.words(child.named_children[0] if is_name else child)
        if words:
            self._called(words)

    def _called(self, words: list[Word]) -> None:
        """What a command does to the script's own state; every other command is kept."""
        name, texts = words[0].text, [word.text for word in words[1:]]
        positional = self.positional
        if name in self.functions:
            self.called.add(name)
            self.positional = texts
            self.run(self.functions[name])
            self.positional = positional
        elif name == "shift" or (name == "set" and texts[:1] == ["--"]):
            self.positional = texts[1:] if texts else self.positional and self.positional[1:]
            if self.condition and self.positional is not None:
                self.positional = [unknown("@")]
        elif name in ("read", "mapfile", "readarray"):
            self.variables |= {text: unknown(text) for text in texts if text.isidentifier()}
        elif name.startswith("-") and self.found:
            said = f"`{name}` is read as part of the command above, whose line does not end in `\\`"
            self.found[-1].words += words
            self.found[-1].notes.append(Note("", said, words[0].span.line))
        else:
            exported = {}
            for key in self.exported:
                if isinstance(value := self.variables.get(key), str):
                    exported[key] = Word(value, self.places.get(key, words[0].span))
            self.found.append(Command(words, exported, condition=self.condition))

    def words(self, node: Node) -> list[Word]:
        """The words that one word becomes."""
        return [Word(text, self.span(node)) for text in self.fields(node)]

    def fields(self, node: Node) -> list[str]:
        """The texts of these words."""
        return [_finished(text) for text in _WORD.findall(self._bounded(node))]

    def _bounded(self, node: Node) -> str:
        text = self._expanded(node)
        if len(text) > _LONGEST_WORD:
            raise self.error("the script's variables grow without bounds")
        return text

    def _expanded(self, node: Node, *, quoted: bool = False) -> str:
        kind, text = node.type, self.source(node)
        if kind == "raw_string":
            return _KEPT + text[1:-1]
        # the grammar takes blanks for a part of what follows them
        blanks = text[: len(text) - len(text.lstrip())] if quoted else ""
        if kind in ("simple_expansion", "expansion"):
            return blanks + self._parameter(node, quoted=quoted)
        if kind in _COMPUTED:
            return blanks + unknown("PWD" if text.strip("$(`) ") == "pwd" else "a command")
        if kind in _LEAVES or not node.children:
            escape = _QUOTED_ESCAPE if quoted else _ESCAPE
            return escape.sub(lambda match: match[1].strip("\n"), text)
        # `"$@"` of nothing is no word
        kept = _KEPT if kind == "string" and not _ALL.fullmatch(text) else ""
        quoted = quoted or kind in ("string", "translated_string")
        return kept + self._inside(node, node.children, node.start_byte, quoted=quoted)

    def _inside(self, node: Node, children: list[Node], at: int, *, quoted: bool) -> str:
        """Some children with the blanks between them."""
        text = ""
        for child in children:
            gap, at = self.text[at : child.start_byte], child.end_byte
            text += gap if quoted else gap.translate(_BLANKS)
            text += "" if child.type in ('"', '$"') else self._expanded(child, quoted=quoted)
        gap = self.text[at : node.end_byte] if children == node.children else ""
        return text + (gap if quoted else gap.translate(_BLANKS))

    def _parameter(self, node: Node, *, quoted: bool) -> str:
        """`$X`, `${X:-…}`, `"${A[@]}"` and their like."""
        parts = [child for child in node.children if child.type not in ("$", "${", "}")] or [node]
        target, *rest = parts
        operator = rest.pop(0).type if rest else ""
        name, kind = self.name(target), operator.strip(":")
        index = self.source(target.named_children[1]) if target.type == "subscript" else ""
        values = self.values(name)
        if not {"@", "*"} & {name, index} and values is not None:
            values = [unknown(f"{name}[{index}]")] if index else values[:1] or [""]
        if operator == ":+" and UNKNOWN.search("".join(values or [])):
            return unknown(name)
        if kind in ("-", "=", "+"):
            start = self.text.index(operator, node.start_byte) + len(operator)
            is_unset = values is None or (operator.startswith(":") and values in ([], [""]))
            if kind == "+" and is_unset:
                is_variable = values is None and name.isidentifier()
                text = _finished(self._inside(node, rest, start, quoted=quoted))
                return mark(text, f"${name} is set") if is_variable else ""
            if is_unset or kind == "+":
                text = self._inside(node, rest, start, quoted=quoted)
                if is_unset and (name.isidentifier() or self.positional is None):
                    self.defaults[name] = None
                    self.empty |= set() if text else {name}
                if not quoted and not re.search("['\"]", self.source(node)):
                    text = text.translate(_BLANKS)
                if kind == "=":
                    self.variables[name] = _finished(text)
                return text
        elif kind not in ("", "?"):
            values = None
        if values is None:
            values = [unknown(name)]
            if name in self.empty and not quoted:
                return ""
        if quoted:
            is_one = "*" in (name, index)
            return " ".join(values) if is_one else _END.join(_KEPT + item for item in values)
        return _END.join(item.translate(_BLANKS) for item in values)

    def values(self, name: str) -> list[str] | None:
        """The values of a variable or parameter; None if the text does not set it."""
        if name in ("@", "*"):
            if self.positional is None:
                said = f"the script's own arguments, `${name}`, are taken as empty"
                self.assumed[said] = None
            return self.positional or []
        if name.isdigit():
            at = int(name)
            return (self.positional or [])[at - 1 : at] or None if at else None
        value = self.variables.get(name)
        return [value] if isinstance(value, str) else value


def _either(name: str, ends: list[tuple[str, Value | None]]) -> Value:
    """One value for those that conditions choose from: how all begin, and marks for the rest."""
    values = [value for _, value in ends]
    if all(value == values[0] for value in values[1:]):
        return values[0] or ""
    lists = [value if isinstance(value, list) else _PARTS.findall(value or "") for value in values]
    same = list(takewhile(lambda one: len({*one}) == 1, zip(*lists, strict=False)))
    rests = [" ".join(one[len(same) :]) for one in lists]
    said = [(rest, condition) for rest, (condition, _) in zip(rests, ends, strict=True) if rest]
    marks = [mark(rest, condition) for rest, condition in said]
    if not same and all(rests):  # one of several values
        which = ", or ".join(f"{rest} if {condition}" for rest, condition in said)
        marks = [mark(f"${name}, which is {which}")]
    parts = [*(one[0] for one in same), *marks]
    return parts if any(isinstance(value, list) for value in values) else " ".join(parts)


def _added(old: Value, new: Value) -> Value:
    """What `X+=` makes of a text, `X+=( … )` of an array."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    items = [old] if isinstance(old, str) else old
    return [*items, *new] if isinstance(new, list) else ["".join([*items[:1], new]), *items[1:]]


def _finished(text: str) -> str:
    """A word without the marks of this module; a home folder is that of who runs the profile."""
    return _HOME.sub("~", text.translate(_NO_SPLIT))
