"""Findings and errors as text: full, with the lines they point to, or one line each."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TextIO
from unicodedata import combining, east_asian_width

from specserve.diagnostics import Finding, Report, Severity, Skipped, Span
from specserve.errors import LaunchError, ProfileError, SpecserveError
from specserve.profile.secrets import hushed, names_a_secret, redacted
from specserve.profile.source import recall
from specserve.report.console import LiveLine, escaped, in_one_line, say, styled, wrapped
from specserve.report.text import count

_WIDTH = 100
"""Columns of a source line that are shown; the marked part is never cut at its start."""
_LEAD = 30
Mark = tuple[Span, str, str]
"""A span, its label, and the character that marks it."""
_HIDDEN = "********"
_LINES_BACK = 100
_LAST_KEY = re.compile(r"""([\w.-]{1,80})["']?\s?:(\s{0,9}\[[^\]]{0,99}|[^,\[\]{}:]{0,99})$""")


class Sources:
    """The text of the files that findings point to, read once. `hidden` spans are never shown."""

    def __init__(self, hidden: Iterable[Span] = ()) -> None:
        self._files: dict[str, list[str]] = {}
        self._hidden = list(hidden)

    def line(self, span: Span) -> str | None:
        """The line of a span with secrets starred out, or None where there is none to show."""
        if span.file not in self._files:
            try:
                text = (
                    recall(span.file).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
                )
            except (OSError, ValueError):
                text = ""
            self._files[span.file] = text.split("\n")
        lines = self._files[span.file]
        if not 0 < span.line <= len(lines):
            return None
        text = lines[span.line - 1].rstrip("\r")
        if _continues_secret(lines, span.line - 1):
            return re.sub(r"\S", "*", text)
        return self._masked(text, span)

    def _masked(self, text: str, place: Span) -> str:
        for span in self._hidden:
            if span.file == place.file and span.line <= place.line <= span.end_line:
                start = span.column - 1 if span.line == place.line else 0
                end = span.end_column - 1 if span.end_line == place.line else len(text)
                text = text[:start] + "*" * (len(text[start:end])) + text[end:]
        return hushed(text)


def _continues_secret(lines: Sequence[str], at: int) -> bool:
    """Whether a line is an item of a list whose key, on a line above, names a secret."""
    line = lines[at].lstrip()
    indent = len(lines[at]) - len(line)
    for above in reversed(lines[max(0, at - _LINES_BACK) : at]):
        text = above.lstrip()
        is_around = len(above) - len(text) < indent or (line[:1] == "-" != text[:1])
        if text and text[0] != "#" and is_around:
            match = _LAST_KEY.search(text[-_WIDTH:])
            return bool(match and names_a_secret(match[1]))
    return False


def masked(key: str, value: str) -> str:
    """Returns a value as it may be shown beside its key: of a secret not even the length."""
    if re.fullmatch(r"\$\w+", value):
        return value  # the variable that holds it
    if names_a_secret(key, value):
        return _HIDDEN
    prefix = f"{key}: "
    text = hushed(prefix + value).removeprefix(prefix)
    return value if text == value else re.sub(r"\*{6,}", _HIDDEN, text)


def _snippet(text: str, marks: Sequence[Mark], *, number: int, width: int) -> list[str]:
    """A line and a row of marks for each span; a line that is too long is shown once per mark."""
    text = text.replace("\t", " ")
    rows: list[str] = []
    for part in [marks] if _columns(text) <= _WIDTH else [[mark] for mark in marks]:
        start, end = 0, len(text)
        if _columns(text) > _WIDTH:
            first = min(span.column for span, _, _ in part) - 1
            start = max(0, first - _LEAD) if first > _WIDTH - _LEAD else 0
            end = min(end, start + _WIDTH)
        before = "…" if start else ""
        rows.append(
            f"{number:>{width}} | {before}{escaped(text[start:end])}"
            + ("…" if end < len(text) else "")
        )
        for span, label, mark in part:
            stop = span.end_column - 1 if span.end_line == span.line else len(text)
            lead = " " * (_columns(text[start : span.column - 1]) + len(before))
            length = _columns(text[span.column - 1 : min(stop, end)].rstrip())
            rows.append(f"{' ' * width} | {lead}{mark * max(1, length)} {escaped(label)}".rstrip())
    return rows


def _columns(text: str) -> int:
    """How many columns a terminal takes for it."""
    shown = escaped(text)
    if shown.isascii():
        return len(shown)
    wide = sum(east_asian_width(character) in "WF" for character in shown)
    return len(shown) + wide - sum(map(bool, map(combining, shown)))


COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def render(findings: Iterable[Finding], *, stream: TextIO | None = None) -> str:
    """Each finding with its source lines, as rustc draws them; secrets are starred out.

    What is only worth knowing comes last, without its lines, and the same help once.
    """
    findings, stream = list(findings), stream or sys.stderr
    sources = Sources(finding.span for finding in findings if finding.name == "secret-in-profile")
    full = [item for item in findings if item.severity is not Severity.INFO]
    blocks = [_full(finding, sources, stream) for finding in full]
    infos = _brief([item for item in findings if item.severity is Severity.INFO], stream)
    return "\n\n".join([*blocks, *infos]) + "\n"


def concise(findings: Iterable[Finding], *, skipped: Iterable[Skipped] = ()) -> str:
    """A line a finding, `FILE:LINE:COLUMN: severity[CODE] message`, and one a skipped group."""
    lines = [
        f"{in_one_line(str(finding.span))}: {finding.severity}[{finding.code}] "
        f"{in_one_line(finding.message)}\n"
        for finding in findings
    ]
    lines += [
        f"{in_one_line(item.profile)}:1:1: skipped[{item.group}] {in_one_line(item.reason)}\n"
        for item in skipped
    ]
    return "".join(lines)


def summary(report: Report) -> str:
    """The last line: what was found in how many profiles; what was left out is never passed."""
    unread = {finding.span.file for finding in report.findings if finding.code == "SD001"}
    read = report.profiles - len(unread)
    found = [count(number, each.value) for each in Severity if (number := report.count(each))]
    skipped = len({code for item in report.skipped for code in item.codes})
    more = [f"{count(skipped, 'rule')} skipped"] if skipped else []
    more += [f"{report.suppressed} ignored"] if report.suppressed else []
    if len(report.findings) > report.count(Severity.INFO):
        words = " and ".join(filter(None, [", ".join(found[:-1]), found[-1]]))
        inside = f" in {count(read, 'profile')}" if read else ""
        parts = [f"Found {words}{inside}", *more]
    elif skipped:
        parts = [f"No errors found in {count(read, 'profile')}; {', '.join([*found, *more])}"]
    else:
        parts = [
            f"All checks passed: {count(read, 'profile')}",
            f"{report.rules} rules",
            *found,
            *more,
        ]
    broken = [item for item in report.verdicts if item.not_run or item.verdict == "invalid"]
    broken = [item for item in broken if item.file not in unread]
    lost = [report.rules if item.not_run is None else len(item.not_run) for item in broken]
    why = (
        f"; {count(max(lost), 'rule')} were not run because the file is invalid"
        if any(lost)
        else ""
    )
    return f"{', '.join(parts)}{why}"


def _head(finding: Finding, stream: TextIO) -> str:
    head = styled(f"{finding.severity}[{finding.code}]", COLOURS[finding.severity], stream=stream)
    return f"{head}: {escaped(finding.message)}"


def _brief(findings: list[Finding], stream: TextIO) -> list[str]:
    """Infos of one code in one block, with the help that they share at its end."""
    blocks = []
    for code in dict.fromkeys(finding.code for finding in findings):
        of_code = [finding for finding in findings if finding.code == code]
        lines = []
        for finding in of_code:
            lines += [_head(finding, stream), f" --> {_place(finding.span)}"]
            lines += [_after("note", note, "", stream) for note in finding.notes]
        ways_out = dict.fromkeys(finding.help for finding in of_code if finding.help)
        blocks.append(
            "\n".join([*lines, *(_after("help", way_out, "", stream) for way_out in ways_out)])
        )
    return blocks


def _place(span: Span) -> str:
    """The place, with the alternative's name: two of them may bring the same message."""
    block, _, rest = span.path.partition(".")
    name = (
        f" (alternative `{escaped(rest.partition('.')[0])}`)"
        if block == "alternatives" and rest
        else ""
    )
    return f"{in_one_line(str(span))}{name}"


def help_line(text: str, stream: TextIO) -> str:
    """Returns a way out, as below a finding."""
    return _after("help", text, "", stream)


def _after(word: str, text: str, pad: str, stream: TextIO) -> str:
    """A line below the source, ` = note: …`."""
    lead = f"{pad or ' '} = {word}: "
    colour = f"{pad or ' '} = {styled(word, 'cyan', stream=stream)}: " if word == "help" else lead
    return wrapped(escaped(text), lead=lead, shown=colour, stream=stream)


def _full(finding: Finding, sources: Sources, stream: TextIO) -> str:
    marked = [
        (finding.span, finding.label, "^"),
        *((item.span, item.label, "-") for item in finding.related),
    ]
    width = max(len(str(span.line)) for span, _, _ in marked)
    pad = " " * width
    lines = [_head(finding, stream), f"{pad}--> {_place(finding.span)}"]
    body = _body(finding, marked, sources, width)
    lines += [f"{pad} |", *body] if body else []
    after = [_after("note", note, pad, stream) for note in finding.notes]
    if finding.help:
        after.append(_after("help", finding.help, pad, stream))
    if body and after:
        lines.append(f"{pad} |")
    return "\n".join(lines + after)


def _body(finding: Finding, marked: list[Mark], sources: Sources, width: int) -> list[str]:
    """The marked lines: those of the finding's own file first, each in file order."""
    places: dict[tuple[bool, str, int], list[Mark]] = {}
    for mark in marked:
        span = mark[0]
        places.setdefault((span.file != finding.span.file, span.file, span.line), []).append(mark)
    body: list[str] = []
    shown_file, shown_line = finding.span.file, sys.maxsize
    for (_, file, line), marks in sorted(places.items(), key=lambda place: place[0]):
        text = sources.line(marks[0][0])
        if text is None or not text.strip():
            continue
        if file != shown_file:
            body += [f"{' ' * width}::: {in_one_line(str(marks[0][0]))}", f"{' ' * width} |"]
        elif line > shown_line + 1:
            body.append("...")
        body += _snippet(text, marks, number=line, width=width)
        shown_file, shown_line = file, line
    return body


def failure(error: SpecserveError) -> str:
    """`error: …`, the causes, the end of a log, and a hint after an empty line."""
    parts = [f"{styled('error', 'red')}: {_sentence(error.message)}"]
    parts += [f"  Caused by: {_sentence(cause)}" for cause in error.causes]
    if isinstance(error, LaunchError):
        parts += _log(error)
    if isinstance(error, ProfileError) and error.findings:
        parts = [render(error.findings), *parts]
    if error.hint:
        parts += ["", f"{styled('hint', 'cyan')}: {_sentence(error.hint)}"]
    return "\n".join(parts)


def _sentence(text: str) -> str:
    """CI obeys lines that start with `::`, and a file's name may hold one behind a line break."""
    return in_one_line(redacted(text))


def readable(text: str) -> str:
    """Returns text of a server, a log or the Hub without keys and control characters."""
    return escaped(redacted(text))


class StderrNotices:
    """Notices on stderr: warnings as lines, progress as one line of a terminal that goes away."""

    def say(self, text: str) -> None:
        """Write one line."""
        say(in_one_line(text))

    def warn(self, text: str) -> None:
        """Write one line that begins with `warning`."""
        say(f"{styled('warning', 'yellow')}: {in_one_line(redacted(text))}")

    def show(self, findings: Sequence[Finding]) -> None:
        """Write findings with the lines that they point to."""
        say(render(findings))

    def progress(self, text: str) -> None:
        """Show what is being done, on a terminal only; an empty text clears the line."""
        LiveLine().show(f"{text[:90]} …" if text else "")


def _log(error: LaunchError) -> list[str]:
    lines = []
    if error.log_tail:
        lines += [
            "",
            "  the log ends with",
            *(f"    | {readable(line)}" for line in error.log_tail),
        ]
    if error.log_path:
        lines += ["", f"  full log: {escaped(error.log_path)}"]
    return lines


def crash_report(error: Exception) -> str:
    """Writes what is needed to find a bug, without values of profiles or keys, and says where."""
    text = escaped(redacted(f"{type(error).__name__}: {error}", shapes=True))
    message = f"{styled('error', 'red')}: specserve failed in a way it did not expect: {text}"
    try:
        path = _write(error)
    except OSError:
        return f"{message}\n\nThis is a bug in specserve; SPECSERVE_DEBUG=1 shows where."
    return f"{message}\n\nThis is a bug in specserve. Please report it with `{path}`."


def _write(error: Exception) -> Path:
    import platform

    from specserve import __version__
    from specserve.files import write_whole
    from specserve.serve.files import private, state_folder

    folder = private(state_folder() / "crashes")
    path = folder / f"crash-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.md"
    head = f"specserve {__version__}, Python {platform.python_version()}, {platform.platform()}"
    body = f"# {head}\n\n```\n{trace(error)}```\n"
    write_whole(path, body.encode(errors="backslashreplace"), mode=0o600)
    return path


def trace(error: Exception) -> str:
    """The traceback without the environment's secrets; it holds no values of variables."""
    import traceback

    return redacted("".join(traceback.format_exception(error)), shapes=True)
