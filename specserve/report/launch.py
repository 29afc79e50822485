"""A launch in words: command, files, lock, differences from another; and what was converted."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Finding, Severity
from specserve.errors import FactError, UsageError
from specserve.plan.launchplan import Difference, FromEnv, LaunchPlan, Side, Written, shell
from specserve.plan.locking import drifts_from, lock_of
from specserve.profile.secrets import holds_a_secret
from specserve.report.console import escaped, out, say, styled
from specserve.report.findings import readable, render
from specserve.report.page import Block, Document, Items, Section
from specserve.report.text import DASH, Column, Table, count, json_document

if TYPE_CHECKING:
    from specserve.convert.convert import Converted
    from specserve.deploy.deployment import Artifact
    from specserve.models.lock import Lock
    from specserve.profile.schema import Profile

_TITLES = {"argv": "arguments", "env": "environment"}


def print_plans(plans: Sequence[LaunchPlan], *, as_json: bool) -> None:
    """The command of each node to stdout, what is added to stderr; or all of it as JSON."""
    first = plans[0]
    env = {  # a raw command may hold secrets
        name: FromEnv(name) if isinstance(text, str) and holds_a_secret(name, text) else text
        for name, text in first.env.items()
    }
    if as_json:
        shown = {
            name: {"from_env": value.name} if isinstance(value, FromEnv) else value
            for name, value in env.items()
        }
        names = ("name", "fingerprint", "vllm", "platform", "argv")
        content: dict[str, object] = {name: getattr(first, name) for name in names}
        content |= {"env": shown, "engine_kwargs": first.engine_kwargs}
        content["added"] = [{"key": one.key, "why": one.why} for one in first.added]
        if len(plans) > 1:
            content["nodes"] = [{"argv": one.argv} for one in plans]
        out(json_document(content))
        return
    for rank, plan in enumerate(plans):
        text = shell(plan.argv, env)
        out(f"# node {rank}\n{text}" if len(plans) > 1 else text)
    nothing = "" if first.added else "; nothing added"
    say(f"# for vLLM {first.vllm} ({first.platform}){nothing}")
    for item in first.added:
        say(f"# added {item.key}: {item.why}")


def print_sglang(profile: Profile, *, as_json: bool) -> None:
    """SGLang's command for a profile to stdout, what to mind to stderr. Raises UsageError."""
    from specserve.sglang.options import VERSION, launch_sglang

    launch = launch_sglang(profile)
    if as_json:
        out(json_document(launch))
        return
    out(shell(launch.argv, launch.env))
    say(f"# SGLang {VERSION}; specserve has never started SGLang")
    for note in launch.notes:
        say(f"# {note}")


def print_files(artifacts: Sequence[Artifact], *, target: str) -> None:
    """Rendered files to stdout. Raises UsageError if none of them is of use alone."""
    alone = [one for one in artifacts if one.alone]
    if not alone:
        names = ", ".join(one.path for one in artifacts)
        hint = "`-o DIR` writes them"
        raise UsageError(f"`--to {target}` makes several files: {names}", hint=hint)
    between = "" if target == "systemd" else "---\n"
    out(between.join(one.text for one in alone))
    if len(alone) < len(artifacts):
        say(f"# {len(artifacts) - len(alone)} more files belong to it: `-o DIR` writes them all")


def say_written(artifacts: Sequence[Artifact], folder: Path, *, changed: int) -> None:
    """The paths of written files to stdout; to stderr how many changed."""
    for one in artifacts:
        out(escaped(str(folder / one.path)))
    say(f"{count(len(artifacts), 'file')}, {changed or 'none'} changed")


def say_stale(found: Sequence[tuple[str, str]], folder: Path, *, total: int) -> int:
    """Which of `total` files are not up to date, as (path, state). Returns 1 if any is not."""
    for path, state in found:
        out(f"{state}: {escaped(str(folder / path))}")
    if not found:
        say(f"up to date: {count(total, 'file')}")
        return 0
    cure = "the same command without `--check` renders them"
    say(f"{styled('hint', 'cyan')}: {cure}")
    return 1


def say_converted(
    result: Converted,
    findings: Sequence[Finding],
    *,
    target: str | None,
) -> bool:
    """The changes, and what is still to be done, on stderr. Returns True for errors."""
    from specserve.convert.convert import OPEN_MARK

    notes = []
    for note in result.notes:
        place = f"line {note.line}: " if note.line > 1 else ""
        about = f"`{note.path}`: " if note.path and f"`{note.path}:" not in note.text else ""
        notes.append((note.line or sys.maxsize, f"{place}{about}{note.text}"))
    for _, text in sorted(notes, key=lambda item: item[0]):
        say(f"note: {escaped(text)}")
    if findings:
        say(render(findings))
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    still = f": {count(errors, 'error')} left to fix" if errors else " passes lint"
    if result.unresolved:
        still += f"; `{OPEN_MARK}` marks each missing value there"
    what = f"`{escaped(target)}`" if target else "the profile"
    say(f"Converted with {count(len(result.notes), 'change')}; {what}{still}")
    return bool(errors)


def say_locked(lock: Lock, profile: Profile, *, changed: bool) -> None:
    """What a lock holds now to stderr, its file to stdout."""
    state = "locked" if changed else "unchanged"
    say(f"{state}: `{profile.name}`, {count(len(lock.models), 'model')}")
    for facts in lock.models:
        commit = facts.commit[:12] if facts.commit else "by its files, without a commit"
        say(f"  {escaped(facts.model)} {commit}")
        for problem in facts.broken.values():
            say(f"    note: {readable(problem)}")
    here = Path.cwd()
    out(str(lock.file.relative_to(here) if lock.file.is_relative_to(here) else lock.file))


def lock_problems(profile: Profile) -> list[str]:
    """What is wrong with a profile's lock: it is missing or bad, or a model is not as it says."""
    try:
        lock = lock_of(profile)
    except FactError as error:
        return [f"{profile.file}: {error.message}"]
    if lock is None:
        return [f"{profile.file}: there is no lock"]
    lines = []
    for drift in drifts_from(profile, lock):
        what = "is not in the lock" if drift.kind == "unlocked" else "is not as in the lock"
        detail = f": {', '.join(drift.detail)}" if drift.detail else ""
        place = f"{profile.name}, {profile.span(drift.path)}"
        lines.append(readable(f"{place}: `{drift.model}` {what}{detail}"))
    return lines


def difference_text(a: Side, b: Side, found: Mapping[str, Sequence[Difference]]) -> str:
    """Returns both launches, then a table for each kind of difference."""
    sides = []
    for name, side in (("a", a), ("b", b)):
        plan = side.plan
        launch = f"vLLM {plan.vllm} ({plan.platform}), fingerprint {plan.fingerprint[:12]}"
        sides.append((name, f"{side.label}: {launch}"))
    blocks: list[Block] = [Items(sides)]
    columns = (Column("", "name"), Column("a", "text"), Column("b", "text"))
    for name, title in _TITLES.items():
        rows = [(each.key, _written(each.a), _written(each.b)) for each in found[name]]
        if rows:
            blocks.append(Section(title, [Table(columns, rows)]))
    return Document("comparison", "", blocks).text(sys.stdout)


def _written(found: Written | None) -> str:
    """A value and where it stands."""
    if found is None:
        return DASH
    value = found.value if isinstance(found.value, str) else json.dumps(found.value)
    return f"{value} ({found.span})" if found.span else value
