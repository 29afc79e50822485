"""Command lines in Python source (`subprocess.run(["vllm", "serve", …])`), by `ast`. Knows no option."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from specserve.convert.pythonsource import Source, engine_word, node_of, parsed
from specserve.convert.words import UNKNOWN, Word
from specserve.diagnostics import Span

Words = list[Word]


def command_lists(text: str, *, file: str) -> list[Words]:
    """The lists and texts of a source that start an engine, as words, in the order of the source.

    What is added to a list in the same block (`cmd += […]`, `cmd.extend([…])`) belongs to it; what is added in a
    branch does not. Raises UsageError for what is no Python.
    """
    tree, source = parsed(text, file=file)
    found: dict[int, Words] = {}
    for block in _blocks(tree):
        for at, statement in enumerate(block):
            for node in _own(statement):
                words = _words(node, source)
                if engine_word(words):
                    found.setdefault(node.lineno, words + _added(statement, block[at + 1 :], source))
    return [words for _, words in sorted(found.items())]


def texts(text: str, *, file: str) -> list[str]:
    """The texts of a source that are command lines for a shell: `"vllm serve …"`, f-strings too."""
    tree, source = parsed(text, file=file)
    alone = {
        id(statement.value)
        for block in _blocks(tree)
        for statement in block
        if isinstance(statement, ast.Expr)
    }
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in alone | inner:
            made = node_of(node, source)
            if isinstance(made.value, str) and _is_command(made.value, made.span):
                found.append(made.value)
    return found


def _is_command(text: str, place: Span) -> bool:
    return " " in text and engine_word([Word(part, place) for part in text.split()])


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _own(statement: ast.stmt) -> Iterator[ast.List | ast.Tuple]:
    """The lists of a statement, not those of the blocks in it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.List, ast.Tuple)):
            yield node
        waiting += [item for item in ast.iter_child_nodes(node) if not isinstance(item, ast.stmt)]


def _words(node: ast.expr, source: Source) -> Words:
    """The texts of a list; what only a run could know stays a mark, and a whole item that is unknown is left out."""
    words: Words = []
    for item in node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]:
        inner = item.value if isinstance(item, ast.Starred) else item
        value = node_of(inner, source)
        many = value.value if isinstance(value.value, list) else [value]
        for one in many:
            if not isinstance(one.value, (dict, list)) and one.value is not None:
                words.append(Word(str(one.value) if one.raw is None else one.raw, value.span))
    return [word for at, word in enumerate(words) if _is_known(words, at)]


def _is_known(words: Words, at: int) -> bool:
    """False for an item that is wholly unknown, but for the model and the value of an option."""
    return not UNKNOWN.fullmatch(words[at].text) or (
        at > 0 and (words[at - 1].text == "serve" or _takes(words[at - 1]))
    )


def _takes(word: Word) -> bool:
    return word.text.startswith("-") and "=" not in word.text


def _added(statement: ast.stmt, following: list[ast.stmt], source: Source) -> Words:
    """What the same block adds to the list that this statement gives a name."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            pass
        case _:
            return []
    words: Words = []
    for later in following:
        match later:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value) if target == name:
                words += _words(value, source)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=target), attr="extend" | "append"), args=[value]
                )
            ) if target == name:
                words += _words(value, source)
    return words
