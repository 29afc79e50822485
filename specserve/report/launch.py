"""A launch in words: command, files, lock, differences from another; and what was converted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from specserve.errors import UsageError
from specserve.plan.compare import Difference, LaunchComparison, Side, Written
from specserve.profile.secrets import hushed
from specserve.report.console import escaped, in_one_line, out, say, styled
from specserve.report.findings import masked
from specserve.report.text import count, fields_of, json_document

if TYPE_CHECKING:
    from specserve.convert.convert import Converted
    from specserve.convert.invocation import EngineStart
    from specserve.deploy.deployment import Artifact
    from specserve.diagnostics import Finding
    from specserve.plan.launchplan import LaunchPlan
    from specserve.plan.locking import Locked, LockState
    from specserve.profile.schema import Profile


def _origins_text(plan: LaunchPlan) -> str:
    """Where each value was written, one a line."""
    from specserve.plan.launchplan import origins

    rows = origins(plan)
    width = max(len(key) for key, _, _ in rows)
    return "\n".join(f"{key:<{width}}  {where}  {in_one_line(value)}" for key, value, where in rows)


def _plans_json(plans: Sequence[LaunchPlan], *, with_origins: bool) -> str:
    """The plan; of several nodes the command of each; on request, where values were written."""
    from specserve.plan.launchplan import as_json, origins

    content: dict[str, Any] = as_json(plans[0])
    if len(plans) > 1:
        content["nodes"] = [{"argv": list(one.argv)} for one in plans]
    if with_origins:
        rows = origins(plans[0])
        content["origins"] = [
            {"key": key, "value": value, "where": where} for key, value, where in rows
        ]
    return json.dumps(content, indent=2)


def print_plans(plans: Sequence[LaunchPlan], *, as_json: bool, with_origins: bool) -> None:
    """The command of each node, or where values stand, to stdout; what is added to stderr."""
    from specserve.plan.launchplan import shell

    if as_json or with_origins:
        out(_plans_json(plans, with_origins=with_origins) if as_json else _origins_text(plans[0]))
        return
    for rank, plan in enumerate(plans):
        out(f"# node {rank}\n{shell(plan)}" if len(plans) > 1 else shell(plan))
    made = plans[0]
    here = f"vLLM {made.vllm} ({made.platform})"
    say(f"# for {here}" + ("" if made.added else "; nothing added"))
    for item in made.added:
        say(f"# added {item.key}: {item.why}")


def print_sglang(profile: Profile, *, as_json: bool) -> None:
    """SGLang's command for a profile to stdout, what to mind to stderr. Raises UsageError."""
    from specserve.plan.launchplan import shell
    from specserve.sglang.options import VERSION, launch_sglang

    made = launch_sglang(profile)
    if as_json:
        known = {"name": made.name, "fingerprint": made.fingerprint, "sglang": VERSION}
        out(json_document({**known, **fields_of(made, "argv", "env", "notes")}))
        return
    out(shell(made))
    say(f"# SGLang {VERSION}; specserve has never started SGLang")
    for note in made.notes:
        say(f"# {note}")


def print_files(artifacts: Sequence[Artifact], *, target: str, as_json: bool) -> None:
    """Rendered files to stdout. Raises UsageError if none of them is of use alone."""
    if as_json:
        out(
            json_document(
                {"target": target, "files": [fields_of(one, "path", "text") for one in artifacts]}
            )
        )
        return
    alone = [one for one in artifacts if one.alone]
    if not alone:
        names = ", ".join(one.path for one in artifacts)
        raise UsageError(
            f"`--to {target}` makes several files: {names}",
            hint="`-o DIR` writes them, `--format json` prints them",
        )
    between = "" if target == "systemd" else "---\n"
    out(between.join(one.text for one in alone).rstrip("\n"))
    if len(alone) < len(artifacts):
        say(f"# {len(artifacts) - len(alone)} more files belong to it: `-o DIR` writes them all")


def say_written(
    artifacts: Sequence[Artifact], folder: Path, *, changed: int, found: Sequence[tuple[str, str]]
) -> None:
    """The paths of written files to stdout; how many changed, and what is left over, to stderr.

    `found`: files and their states, as after the writing.
    """
    for one in artifacts:
        out(escaped(str(folder / one.path)))
    say(f"{count(len(artifacts), 'file')}, {f'{changed} of them' if changed else 'none'} changed")
    if left := [path for path, state in found if state == "left over"]:
        say(
            f"note: {count(len(left), 'file')} of another rendering left over, which can be "
            "deleted:"
        )
        for path in left:
            say(f"  {escaped(str(folder / path))}")


def say_stale(found: Sequence[tuple[str, str]], folder: Path, *, total: int, again: str) -> int:
    """Which of `total` files are not up to date, as (path, state); returns 1 if any is not, else 0.

    `again`: the command that renders them.
    """
    for path, state in found:
        out(f"{state}: {escaped(str(folder / path))}")
    if not found:
        say(f"up to date: {count(total, 'file')}")
        return 0
    left = sum(state == "left over" for _, state in found)
    say(
        f"stale: {len(found) - left} of {count(total, 'file')}"
        + (f"; {left} left over" if left else "")
    )
    say("")
    if len(found) > left:
        say(f"{styled('hint', 'cyan')}: `{escaped(hushed(again))}` renders them again")
    if left:
        say(f"{styled('hint', 'cyan')}: delete the files that are left over from another rendering")
    return 1


def say_converted(
    result: Converted,
    findings: Sequence[Finding],
    *,
    target: str | None,
    others: Sequence[EngineStart],
) -> bool:
    """The changes, and what is still to be done, on stderr. Returns True for errors."""
    from specserve.convert.convert import OPEN_MARK
    from specserve.diagnostics import Severity
    from specserve.report.findings import render

    text = "starts another engine, which is left out"
    notes = [
        (other.place.line, f"line {other.place.line}: {other.what} {text}") for other in others
    ]
    for note in result.notes:
        place = f"line {note.line}: " if note.line > 1 else ""
        about = f"`{note.path}`: " if note.path and f"`{note.path}:" not in note.text else ""
        notes.append((note.line or sys.maxsize, f"{place}{about}{note.text}"))
    for _, said in sorted(notes, key=lambda item: item[0]):
        say(f"note: {escaped(said)}")
    if findings:
        say(render(findings))
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    what = f"`{escaped(target)}`" if target else "the profile"
    still = f": {count(errors, 'error')} left to fix" if errors else " passes lint"
    if result.unresolved:
        still += f"; `{OPEN_MARK}` marks each missing value there, because `lint` does not see all "
        still += "of them"
    say(f"Converted with {count(len(result.notes), 'change')}; {what}{still}")
    return bool(errors)


def locks_text(states: Sequence[LockState]) -> str:
    """Returns how many locks do not hold, and how to cure it."""
    bad = {state: states.count(state) for state in sorted(set(states)) if state != "holds"}
    if not bad:
        return f"{count(len(states), 'lock')} {'is' if len(states) == 1 else 'are'} up to date"
    counted = " and ".join(
        f"{many} {'is' if many == 1 else 'are'} {word}" for word, many in bad.items()
    )
    first, rest = counted.split(" ", 1)
    hint = f"{styled('hint', 'cyan')}: `specserve lock` with the same paths updates them"
    return f"{first} of {len(states)} locks {rest}\n\n{hint}"


def say_locked(done: Locked, profile: Profile) -> None:
    """What a lock holds now to stderr, its file to stdout."""
    from specserve.report.findings import readable

    say(
        f"{'locked' if done.changed else 'unchanged'}: `{profile.name}`, "
        f"{count(len(done.models), 'model')}"
    )
    for facts in done.models:
        revision = (
            f" ({facts.revision})" if facts.revision and facts.revision != facts.commit else ""
        )
        commit = facts.commit[:12] if facts.commit else "by its files, without a commit"
        say(f"  {escaped(facts.model)}{revision} {commit}")
        for note in facts.notes:
            say(f"    note: {readable(note)}")
    here = Path.cwd()
    out(str(done.file.relative_to(here) if done.file.is_relative_to(here) else done.file))


_TITLES = {
    "argv": "arguments",
    "env": "environment",
    "profile": "other keys of the profile, not part of the launch",
}
_MEANINGS = {
    "vllm": "vllm: the versions that it is for; for a command, those that have its options"
}
_WHERE_COLUMN = 44


def difference_text(
    a: Side, b: Side, comparison: LaunchComparison, *, stream: TextIO | None = None
) -> str:
    """Returns a block a difference: the key, `-` with A's value and place, `+` with B's."""
    stream = stream or sys.stdout
    lines = [styled(f"--- {_named_head(a, b)}", "red", stream=stream)]
    lines.append(styled(f"+++ {_named_head(b, a)}", "green", stream=stream))
    for name, title in _TITLES.items():
        items = getattr(comparison, name)
        lines += ["", styled(title, "bold", stream=stream)] if items else []
        for item in items:
            lines += _difference_block(item, stream)
    return "\n".join(lines) + "\n"


def _named_head(side: Side, other: Side) -> str:
    """A name with what differs of its frame."""
    parts, plan = [escaped(side.label)], side.plan
    if plan.vllm != other.plan.vllm:
        parts.append(f"vLLM {plan.vllm}")
    if plan.platform != other.plan.platform:
        parts.append(plan.platform)
    if plan.fingerprint != other.plan.fingerprint:
        parts.append(f"fingerprint {plan.fingerprint[:12]}")
    return "  ".join(parts)


def _difference_block(item: Difference, stream: TextIO) -> Iterator[str]:
    yield f"  {escaped(_MEANINGS.get(item.key, item.key))}"
    sides = [
        (sign, written) for sign, written in (("-", item.a), ("+", item.b)) if written is not None
    ]
    for sign, written in sides:
        text = (
            written.value
            if isinstance(written.value, str)
            else json.dumps(written.value, ensure_ascii=False)
        )
        value = f"    {sign} {escaped(masked(item.key, text))}"
        where = f"  {escaped(str(written.span))}" if written.span else ""
        style = "red" if sign == "-" else "green"
        yield styled(f"{value:<{_WHERE_COLUMN}}" if where else value, style, stream=stream) + where


def difference_json(a: Side, b: Side, comparison: LaunchComparison) -> str:
    """Returns the same for scripts: null for a side without the key, or a value without a place."""
    content: dict[str, Any] = {
        name: {"file": side.label, **fields_of(side.plan, "fingerprint", "vllm", "platform")}
        for name, side in (("a", a), ("b", b))
    }
    content["equal"] = not comparison.count
    for name in _TITLES:
        content[name] = [
            {"key": item.key, "a": _written(item.key, item.a), "b": _written(item.key, item.b)}
            for item in getattr(comparison, name)
        ]
    return json_document(content)


def _written(key: str, written: Written | None) -> dict[str, Any] | None:
    if written is None:
        return None
    value = masked(key, written.value) if isinstance(written.value, str) else written.value
    where = fields_of(written.span, "file", "line", "column") if written.span else None
    return {"value": value, "where": where}
