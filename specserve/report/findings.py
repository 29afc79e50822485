"""Findings and errors as text: full, with the lines they point to, or one line each."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TextIO

from specserve.diagnostics import Finding, Notices, Report, Severity, Skipped, Span
from specserve.errors import LaunchError, ProfileError, SpecserveError
from specserve.profile.secrets import hushed, names_a_secret, redacted
from specserve.profile.source import read
from specserve.report.console import LiveLine, escaped, in_one_line, out, say, styled, wrapped
from specserve.report.text import count

_WIDTH = 100
"""Characters of a source line that are shown, those before the mark included."""
_LEAD = 40
Mark = tuple[Span, str, str]
"""A span, its label, and the character that marks it."""
COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_LINES_BACK = 100
_LAST_KEY = r"""([\w.-]{1,80})["']?\s?:(\s{0,9}\[[^\]]{0,99}|[^,\[\]{}:]{0,99})$"""


class _Sources:
    """The text of the files that findings point to, read once and shown without secrets."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._files: dict[str, list[str]] = {}
        self._hidden = [each.span for each in findings if _points_to_secret(each)]

    def line(self, span: Span) -> str:
        """Returns the line of a span with secrets starred out, empty where there is none."""
        if span.file not in self._files:
            try:
                text = read(span.file).decode("utf-8-sig")
            except (OSError, ValueError):
                text = ""
            self._files[span.file] = re.split(r"\r\n|\r|\n", text)
        lines = self._files[span.file]
        if not 0 < span.line <= len(lines):
            return ""
        text = lines[span.line - 1]
        if _continues_secret(lines, span.line - 1):
            return re.sub(r"\S", "*", text)
        for secret in self._hidden:
            if secret.file == span.file and secret.line <= span.line <= secret.end_line:
                start = secret.column - 1 if secret.line == span.line else 0
                end = secret.end_column - 1 if secret.end_line == span.line else len(text)
                text = text[:start] + "*" * len(text[start:end]) + text[end:]
        return hushed(text).replace("\t", " ")


def _points_to_secret(finding: Finding) -> bool:
    """Whether a finding is of a secret, or of one where only a variable's name may stand."""
    key = finding.span.path.rpartition(".")[2]
    is_key = key == "api_key_env" or names_a_secret(key)
    return finding.name == "secret-in-profile" or (finding.name == "wrong-value" and is_key)


def _continues_secret(lines: Sequence[str], at: int) -> bool:
    """Whether a line is an item of a list whose key, on a line above, names a secret."""
    line = lines[at].lstrip()
    indent = len(lines[at]) - len(line)
    for above in reversed(lines[max(0, at - _LINES_BACK) : at]):
        text = above.lstrip()
        is_around = len(above) - len(text) < indent or (line[:1] == "-" != text[:1])
        if text and text[0] != "#" and is_around:
            match = re.search(_LAST_KEY, text[-_WIDTH:])
            return bool(match and names_a_secret(match[1]))
    return False


def show_findings(report: Report) -> None:
    """Prints what the rules found, while vLLM is asked."""
    if report.findings:
        out(render(report.findings, stream=sys.stdout))
        sys.stdout.flush()


def render(findings: Iterable[Finding], *, stream: TextIO | None = None) -> str:
    """Returns each finding with its source lines, as rustc draws them; secrets are starred out.

    What is only worth knowing comes last, without its lines, and the same help once.
    """
    stream = stream or sys.stderr
    found = sorted(findings, key=lambda finding: finding.severity is Severity.INFO)
    sources, blocks, helped = _Sources(found), list[str](), set[str]()
    for finding in found:
        is_info = finding.severity is Severity.INFO
        marks = [(finding.span, finding.label, "^")]
        marks += [(item.span, item.label, "-") for item in finding.related]
        width = 1 if is_info else max(len(str(span.line)) for span, _, _ in marks)
        pad = " " * width
        code = f"{finding.severity}[{finding.code}]"
        head = styled(code, COLOURS[finding.severity], stream=stream)
        lines = [f"{head}: {escaped(finding.message)}"]
        lines.append(f"{pad}--> {in_one_line(str(finding.span))}")
        source = [] if is_info else list(_source_rows(marks, sources, width))
        after = [remark("note", note, pad, stream) for note in finding.notes]
        if finding.help and not (is_info and finding.help in helped):
            after.append(remark("help", finding.help, pad, stream))
            helped.add(finding.help)
        if source:
            lines += [f"{pad} |", *source]
            lines += [f"{pad} |"] if after else []
        blocks.append("\n".join([*lines, *after]))
    return "\n\n".join(blocks) + "\n"


def _source_rows(marks: list[Mark], sources: _Sources, width: int) -> Iterator[str]:
    """The marked lines, those of the finding's own file first; a `^` or `-` row for each mark."""
    own, last = marks[0][0].file, sys.maxsize
    pad = " " * width
    marks = sorted(marks, key=lambda mark: (mark[0].file != own, mark[0].file, mark[0].line))
    for (file, number), of_line in groupby(marks, key=lambda mark: (mark[0].file, mark[0].line)):
        here = list(of_line)
        text = sources.line(here[0][0])
        if not text.strip():
            continue
        if file != own:
            yield f"{pad}::: {in_one_line(str(here[0][0]))}"
            yield f"{pad} |"
        elif number > last + 1:
            yield "..."
        own, last = file, number
        shown = None
        for span, label, mark in here:
            start = max(0, span.column - _LEAD) if len(text) > _WIDTH else 0
            stop = start + _WIDTH
            if start != shown:  # a long line is shown around each mark
                part = f"…{text[start + 1 : stop]}" if start else text[:stop]
                yield f"{number:>{width}} | {escaped(part)}{'…' if stop < len(text) else ''}"
                shown = start
            end = span.end_column - 1 if span.end_line == number else len(text)
            lead = " " * len(escaped(text[start : span.column - 1]))
            length = len(escaped(text[span.column - 1 : min(end, stop)].rstrip()))
            yield f"{pad} | {lead}{mark * max(1, length)} {escaped(label)}".rstrip()


def remark(word: str, text: str, pad: str, stream: TextIO) -> str:
    """Returns what stands below the source, ` = note: …`."""
    lead = f"{pad} = {word}: "
    shown = f"{pad} = {styled(word, 'cyan', stream=stream)}: " if word == "help" else lead
    return wrapped(escaped(text), lead=lead, shown=shown, stream=stream)


def concise(findings: Iterable[Finding], *, skipped: Iterable[Skipped] = ()) -> str:
    """A line a finding, `FILE:LINE:COLUMN: severity[CODE] message`, and one a skipped group."""
    rows = [(str(each.span), f"{each.severity}[{each.code}]", each.message) for each in findings]
    rows += [(f"{each.profile}:1:1", f"skipped[{each.group}]", each.reason) for each in skipped]
    return "".join(f"{in_one_line(f'{place}: {word} {text}')}\n" for place, word, text in rows)


def summary(report: Report) -> str:
    """Returns the last line: what was found in how many profiles, and what was left out."""
    found = [count(number, each.value) for each in Severity if (number := report.count(each))]
    skipped = dict.fromkeys(item.group for item in report.skipped)
    profiles = count(len(report.verdicts), "profile")
    if len(report.findings) > report.count(Severity.INFO):
        parts = [f"Found {', '.join(found)} in {profiles}"]
    elif skipped:
        parts = [f"No errors found in {profiles}", *found]
    else:
        parts = [f"All checks passed: {profiles}", *found]
    parts += [f"not fully checked: {' and '.join(skipped)}"] if skipped else []
    parts += [f"{report.suppressed} ignored"] if report.suppressed else []
    if any(item.verdict == "invalid" for item in report.verdicts):
        parts.append("some rules not run because a file is invalid")
    return ", ".join(parts)


def failure(error: SpecserveError) -> str:
    """Returns `error: …`, the causes, the end of a log, and a hint after an empty line."""
    parts = [f"{styled('error', 'red')}: {_sentence(error.message)}"]
    parts += [f"  Caused by: {_sentence(cause)}" for cause in error.causes]
    if isinstance(error, LaunchError) and error.log_tail:
        tail = [f"    | {readable(line)}" for line in error.log_tail]
        parts += ["", "  the log ends with", *tail]
    if isinstance(error, LaunchError) and error.log_path:
        parts += ["", f"  full log: {escaped(error.log_path)}"]
    if isinstance(error, ProfileError) and error.findings:
        parts = [render(error.findings), *parts]
    if error.hint:
        parts += ["", f"{styled('hint', 'cyan')}: {_sentence(error.hint)}"]
    return "\n".join(parts)


def crash(error: Exception, *, has_trace: bool) -> str:
    """Returns what is said of a bug, with or without the traceback, and with no secret's value."""
    if has_trace:
        return redacted("".join(traceback.format_exception(error)), shapes=True)
    text = escaped(redacted(f"{type(error).__name__}: {error}", shapes=True))
    said = f"{styled('error', 'red')}: specserve failed in a way it did not expect: {text}"
    return f"{said}\n\nThis is a bug: please report it with what SPECSERVE_DEBUG=1 shows."


def _sentence(text: str) -> str:
    """CI obeys lines that start with `::`, and a file's name may hold one behind a line break."""
    return in_one_line(redacted(text))


def readable(text: str) -> str:
    """Returns text of a server, a log or the Hub without keys and control characters."""
    return escaped(redacted(text))


class StderrNotices(Notices):
    """Notices on stderr: warnings as lines, progress as one line of a terminal that goes away."""

    def say(self, text: str) -> None:
        """Write one line."""
        say(in_one_line(text))

    def warn(self, text: str) -> None:
        """Write one line that begins with `warning`."""
        say(f"{styled('warning', 'yellow')}: {_sentence(text)}")

    def show(self, findings: Sequence[Finding]) -> None:
        """Write findings with the lines that they point to."""
        say(render(findings))

    def progress(self, text: str) -> None:
        """Show what is being done, on a terminal only; an empty text clears the line."""
        LiveLine().show(f"{text[:90]} …" if text else "")
