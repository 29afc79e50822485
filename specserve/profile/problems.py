"""What can be wrong with a profile before any rule looks at it: the SD0xx codes, and hints for what is not YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from specserve.diagnostics import Code, Finding, Related, Severity, Span

CODES: tuple[Code, ...] = tuple(
    Code(code, name, Severity.ERROR)
    for code, name in (
        ("SD002", "unreadable-file"),
        ("SD004", "duplicate-key"),
        ("SD005", "unknown-key"),
        ("SD006", "wrong-value"),
        ("SD007", "missing-key"),
        ("SD009", "bad-extends"),
        ("SD011", "ambiguous-scalar"),
    )
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
