"""What can be wrong with a profile before any rule looks at it: the SD0xx codes, and hints for what is not YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from inspect import cleandoc
from textwrap import indent

from specserve.diagnostics import Code, Finding, Related, Severity, Span


def _page(code: str, name: str, what: str, why: str, bad: str, good: str, *, file: str) -> Code:
    """A code with its manual page: what it is, why it is bad, an example and what to write in its place."""
    parts = {"Why is this bad?": cleandoc(why), "Example": indent(cleandoc(bad), "    ")}
    parts |= {"Use instead": indent(cleandoc(good), "    "), "Source": f"specserve, profile/{file}.py"}
    sections = (f"\n\n## {title}\n{text}" for title, text in parts.items())
    return Code(code, name, Severity.ERROR, "".join((cleandoc(what), *sections, "\n")))


CODES: tuple[Code, ...] = (
    _page(
        "SD001",
        "unreadable-file",
        "A file or folder that cannot be opened, or that is not UTF-8.",
        "The file was not judged. If specserve skipped it, a CI run would pass for the wrong reason.",
        "$ specserve lint no/such.yaml",
        "$ specserve lint configs/demo.yaml",
        file="load",
    ),
    _page(
        "SD002",
        "invalid-yaml",
        "The text is not YAML, or it contains YAML that has no meaning in a profile.",
        """
        A parser's guess about broken text may not be what the author meant. A tag such as `!!python/object`
        asks for code to be run, and a character that YAML does not allow may be invisible.
        """,
        "target: {model: org/target",
        "target: {model: org/target}",
        file="source",
    ),
    _page(
        "SD003",
        "not-a-mapping",
        "The file holds a list, a single value, several documents or nothing, but a profile is one mapping.",
        "specserve reads nothing from such a file. Probably it is another kind of file, or the wrong file was named.",
        "- target: {model: org/target}",
        "target: {model: org/target}",
        file="source",
    ),
    _page(
        "SD004",
        "duplicate-key",
        "A key that occurs twice in one mapping.",
        """
        YAML parsers keep one of the two values, usually the last, without a warning. A reader of the file
        may look at the value that is not used.
        """,
        """
        target: {model: org/target}
        engine:
          max_num_seqs: 64
          max_num_seqs: 128
        """,
        """
        target: {model: org/target}
        engine:
          max_num_seqs: 128
        """,
        file="source",
    ),
    _page(
        "SD005",
        "unknown-key",
        "A key that a profile does not have, or that belongs elsewhere.",
        """
        A misspelt key sets nothing. specserve never drops a key silently. If you check a vLLM command
        (`lint -- vllm serve …`) instead of a profile, a key that vLLM accepts but never reads is a warning.
        """,
        """
        target: {model: org/target}
        speculation: {method: ngram, num_speculative_token: 5}
        """,
        """
        target: {model: org/target}
        speculation: {method: ngram, num_speculative_tokens: 5}
        """,
        file="schema",
    ),
    _page(
        "SD006",
        "wrong-value",
        "A value of the wrong type, or out of its range.",
        """
        vLLM would end with a usage error, or take the value for something else. A profile does not accept the method
        `extract_hidden_states` or the method of a plug-in, although vLLM does.
        For a vLLM command (`lint -- vllm serve …`), such a method is only a warning.
        """,
        "target: {model: org/target, tensor_parallel_size: four}",
        "target: {model: org/target, tensor_parallel_size: 4}",
        file="values",
    ),
    _page(
        "SD007",
        "missing-key",
        "A required key is missing.",
        """
        It has no default: a profile needs a target, a block of speculation needs its method, and most
        methods need a model and a number of tokens.
        """,
        """
        target: {model: org/target}
        speculation: {method: draft_model, num_speculative_tokens: 5}
        """,
        """
        target: {model: org/target}
        speculation: {method: draft_model, model: org/draft, num_speculative_tokens: 5}
        """,
        file="validate",
    ),
    _page(
        "SD008",
        "too-complex",
        "The file is larger or deeper than any profile, or refers to itself.",
        """
        Aliases of aliases can make a short file fill all memory. The limits (1 MB, 50 levels, 20,000
        values) are far above what a profile needs.
        """,
        """
        target: {model: org/target}
        engine: &a {b: *a}
        """,
        """
        target: {model: org/target}
        engine: {max_num_seqs: 64}
        """,
        file="source",
    ),
    _page(
        "SD009",
        "bad-extends",
        "The parent that `extends` names cannot be used.",
        """
        It does not exist, is not a profile, refers to itself, or lies outside of the repository. Without
        the parent, the launch is not known, so nothing else can be judged.
        """,
        """
        extends: ./no-such-parent.yaml
        target: {model: org/target}
        """,
        "target: {model: org/target}",
        file="load",
    ),
    _page(
        "SD010",
        "unknown-schema",
        "The profile is written for another version of the profile schema.",
        "Its keys may have another meaning in that version. A newer specserve may be able to read it.",
        """
        schema: 2
        target: {model: org/target}
        """,
        """
        schema: 1
        target: {model: org/target}
        """,
        file="schema",
    ),
    _page(
        "SD011",
        "ambiguous-scalar",
        "A plain value that YAML reads differently than a person does.",
        "YAML 1.1 reads `010` as eight, a person reads it as ten. The file does not say which was meant.",
        "target: {model: org/target, tensor_parallel_size: 010}",
        "target: {model: org/target, tensor_parallel_size: 8}",
        file="values",
    ),
)


NAMES = {code.code: code.name for code in CODES}


class Stop(Exception):
    """The file is not worth reading on: its last finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def problem(
    code: str,
    message: str,
    span: Span,
    *,
    label: str = "",
    help: str | None = None,  # the field's own name
    related: tuple[Related, ...] = (),
    policy: bool = False,
) -> Finding:
    """An error of the file itself. `policy`: vLLM takes it, or a plug-in of vLLM may."""
    return Finding(
        code,
        NAMES[code],
        Severity.ERROR,
        message,
        span,
        label=label,
        help=help,
        related=related,
        policy=policy,
    )


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Each problem once, in file order; a value that several aliases bring in is one problem."""
    kept: dict[tuple[object, ...], Finding] = {}
    for finding in sorted(findings, key=lambda item: (item.sort_key, item.message)):
        # two keys can be missing at one place; nothing else can be wrong twice there
        what = finding.message if finding.code == "SD007" else ""
        kept.setdefault((finding.sort_key, what), finding)
    return list(kept.values())


_KEY = r"(?:[\w./-]+|\"[^\"]*\"|'[^']*')"
_ITEMS = r"\s*(?:- +)*"
_FIRST_KEY = re.compile(rf"{_ITEMS}{_KEY}\s*")
_NO_SPACE = re.compile(rf"{_ITEMS}({_KEY}):([^\s:/].*)")
_NO_COLON = re.compile(rf"{_ITEMS}({_KEY})\s*")
_ASSIGNED = re.compile(rf"{_ITEMS}({_KEY})\s*=\s*(.*)")
_PAIR = re.compile(rf"{_ITEMS}{_KEY}:\s+(\S.*)")
_CONFLICT = re.compile(r"<{7} |={7}$|>{7} ")
_QUOTE_VALUE = "put the value in quotes"


def hint(reason: str, lines: Sequence[str], line: int, column: int) -> str | None:
    """What to change so that YAML can go on at this place (0-based), where it stopped for this reason."""
    if any(_CONFLICT.match(text) for text in lines):
        return "the file holds the marks of a merge conflict: keep one side"
    text = lines[line] if line < len(lines) else ""
    if "comment or line break" in reason:
        return "a value that starts with `>` or `|` needs quotes"
    if reason == "mapping values are not allowed in this context":
        if _FIRST_KEY.fullmatch(text[:column]):
            return _about_line_before(lines, line)
        return "a value that holds `: ` needs quotes"
    if reason == "could not find expected ':'":
        return _about_key(text, line=None) or "write `: ` after a key"
    if reason.startswith(("did not find expected key", "did not find expected '-'")):
        if not text[:column].strip():
            return _about_line_before(lines, line)
        return _about_rest(text, column)
    if reason == "did not find expected <document start>":
        return (
            "`...` ends the profile: remove it" if "..." in lines[:line] else _about_line_before(lines, line)
        )
    if reason == "found unknown escape character":
        return "`\\` begins an escape in double quotes: use single quotes"
    if "alphabetic or numeric" in reason or reason == "mapping keys are not allowed in this context":
        return _QUOTE_VALUE
    return None


def _about_line_before(lines: Sequence[str], line: int) -> str | None:
    """The mistake is in the line above, or in how far this one is indented."""
    above = next((number for number in reversed(range(line)) if _content(lines[number])), None)
    if above is None:
        return None
    before, here = lines[above], lines[line]
    hint = _about_key(before, line=above + 1)
    if hint:
        return hint
    if re.match(r"\s*-\w", before):
        return f"write a space after the dash of a list item, see line {above + 1}"
    if (
        not _PAIR.match(before)
        and not re.match(rf"{_ITEMS}{_KEY}:\s*(#.*)?$", before)
        and _indent(here) > _indent(before)
    ):
        return f"line {above + 1} is not of the form `key: value`"
    return _indentation(lines, line, above=above)


def _about_key(text: str, *, line: int | None) -> str | None:
    """What is wrong with a line that has no `key: `."""
    where = f", see line {line}" if line is not None else ""
    if text.lstrip().startswith("//"):
        return f"start a comment with `#`{where}"
    pair = _NO_SPACE.fullmatch(text.rstrip())
    if pair:
        return f"write a space after the colon, as in `{pair[1]}: …`{where}"
    assigned = _ASSIGNED.fullmatch(text.rstrip())
    if assigned:
        return f"write `: ` after a key, not `=`{where}"
    bare = _NO_COLON.fullmatch(text.rstrip())
    return f"write `: ` after a key{where}" if bare else None


def _indentation(lines: Sequence[str], line: int, *, above: int) -> str:
    """How far the line may be indented: like one of the lines that it can go on from."""
    here = _indent(lines[line])
    open_lines: dict[int, int] = {}
    least = len(lines[above]) + 1
    for number in reversed(range(line)):
        indent = _indent(lines[number])
        if _content(lines[number]) and indent < least:
            least = indent
            open_lines[indent] = number + 1
    if here in open_lines and lines[line].lstrip().startswith("- "):
        return "a list item cannot stand among keys"
    if here in open_lines:
        return f"indent a key of the list item in line {open_lines[here]} by {here + 2} spaces; found {here}"
    if here > _indent(lines[above]):
        return f"line {above + 1} already has a value: indent this line like it, or remove that value"
    choices = [f"by {indent} like line {number}" for indent, number in open_lines.items()]
    return f"indent the line {' or '.join(choices)}; found {here}"


def _about_rest(text: str, column: int) -> str | None:
    """What stands behind a value that is already complete."""
    rest = text[column:]
    if rest[:1] in ("]", "}"):
        return f"there is one `{rest[0]}` too many"
    pair = _PAIR.match(text)
    start = pair[1][0] if pair else ""
    if start in ("'", '"'):
        other = "double" if start == "'" else "single"
        return f"the quote ends before the value does: put all of it in {other} quotes"
    return f"a value that starts with `{start}` needs quotes" if start and start in "[{&*!" else None


def _content(text: str) -> bool:
    return bool(text.strip()) and not text.lstrip().startswith("#")


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))
