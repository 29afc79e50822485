"""`specserve render`: one profile to files for production."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Alternative, Baseline, NoLock, ProfileOrCommand, Settings, flag, text_option
from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.deploy.deployment import Artifact


class RenderTarget(StrEnum):
    """What the files are for."""

    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"
    RAY = "ray"
    MONITORING = "monitoring"


class RenderFormat(StrEnum):
    """How they are written if there is no folder."""

    TEXT = "text"
    JSON = "json"


def render(
    profile: ProfileOrCommand,
    *,
    to: Annotated[RenderTarget, typer.Option("--to", help="What the files are for.", show_default=False)],
    output: Annotated[
        Path | None, text_option("DIR", "Where to write; default: stdout.", "--output", "-o")
    ] = None,
    check: Annotated[
        bool, flag("--check", "Write nothing; exit code 1 if the files in DIR are stale.")
    ] = False,
    force: Annotated[bool, flag("--force", "Overwrite files that specserve did not write.")] = False,
    image: Annotated[
        str | None, text_option("IMAGE", "Instead of vLLM's official one; by digest, to pin it.")
    ] = None,
    baseline: Baseline = False,
    alternative: Alternative = None,
    vllm: Annotated[
        str | None, text_option("VERSION", "Default: the newest that the profile is for.")
    ] = None,
    no_check: Annotated[bool, flag("--no-check", "Write even if the rules object.")] = False,
    no_lock: NoLock = False,
    settings: Settings = None,
    format: Annotated[
        RenderFormat, typer.Option(help="Without DIR: the text, or JSON of all files.")
    ] = RenderFormat.TEXT,
) -> None:
    """Write a profile's launch for production, as files.

    For compose, Kubernetes, systemd or Ray: the exact command, no specserve inside.
    The same profile gives the same bytes on every machine, so the files can be committed and --check holds
    them in CI. Keys and tokens are named, never written. docs/render.md says what is in which file.

    \b
    specserve render configs/demo.yaml --to compose -o deploy/demo
    specserve render big.yaml --to kubernetes -o deploy/big --image REPO@sha256:…
    specserve render big.yaml --to systemd
    specserve render big.yaml --to kubernetes -o deploy/big --check
    """
    from specserve.checks.prepare import prepare
    from specserve.deploy.deployment import deployment, locked_weights_bytes
    from specserve.deploy.targets import caveats
    from specserve.deploy.targets import render as rendered
    from specserve.profile.load import load_profile
    from specserve.report.console import say
    from specserve.report.findings import StderrNotices
    from specserve.vllm.versions import newest_in, table

    _refuse_contradictions(output, check=check, force=force, format=format)
    vllm = vllm or newest_in(load_profile(profile, settings=settings or ()).vllm)
    source, plan = prepare(
        profile,
        settings=settings or (),
        alternative=alternative,
        baseline=baseline,
        vllm=vllm,
        check=not no_check,
        starts=False,
        whole=True,
        use_lock=not no_lock,
        notices=StderrNotices(),
    )
    weights = None if no_lock else locked_weights_bytes(source)
    made = deployment(
        source, table=table(vllm), version=vllm, platform=plan.platform, image=image, weights_bytes=weights
    )
    folder = output or (Path(source.file).parent if source.file != "-" else Path())
    artifacts = rendered(to.value, made, folder=str(folder.absolute()))
    if output is None:
        _print(artifacts, to, format)
    elif check:
        _compare(artifacts, output, to, again=f"specserve render {profile} --to {to.value} -o {output}")
        return
    else:
        _write(artifacts, output, force=force)
    for line in caveats(made, to.value):
        say(line)


def _refuse_contradictions(output: Path | None, *, check: bool, force: bool, format: RenderFormat) -> None:
    if (check or force) and output is None:
        raise UsageError(f"`--{'check' if check else 'force'}` is about the files in a folder: `-o DIR`")
    if format is RenderFormat.JSON and output is not None:
        raise UsageError("`--format` says how stdout is written, and with `-o` the files go to a folder")


def _print(artifacts: tuple[Artifact, ...], to: RenderTarget, format: RenderFormat) -> None:
    from specserve.report.console import out, say

    if format is RenderFormat.JSON:
        files = [{"path": one.path, "text": one.text} for one in artifacts]
        out(json.dumps({"version": 1, "target": to.value, "files": files}, indent=2, ensure_ascii=False))
        return
    alone = [one for one in artifacts if one.alone]
    if not alone:
        names = ", ".join(one.path for one in artifacts)
        raise UsageError(
            f"`--to {to.value}` is several files: {names}",
            hint="`-o DIR` writes them, `--format json` prints them",
        )
    between = "" if to is RenderTarget.SYSTEMD else "---\n"
    out(between.join(one.text for one in alone).rstrip("\n"))
    if len(alone) < len(artifacts):
        say(f"# {len(artifacts) - len(alone)} more files belong to it: `-o DIR` writes them all")


def _write(artifacts: tuple[Artifact, ...], folder: Path, *, force: bool) -> None:
    from specserve.deploy.targets import foreign, put
    from specserve.report.console import clean, out, say

    strangers = [] if force else foreign(artifacts, folder)
    if strangers:
        raise UsageError(
            f"`{clean(str(folder / strangers[0]))}` was not written by specserve",
            hint="another folder, or `--force` to overwrite it",
        )
    changed = put(artifacts, folder)
    for one in artifacts:
        out(clean(str(folder / one.path)))
    say(f"{_files(len(artifacts))}, {f'{changed} of them' if changed else 'none'} changed")


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


def _compare(artifacts: tuple[Artifact, ...], folder: Path, to: RenderTarget, *, again: str) -> None:
    """Exit code 1 if a file is missing, differs, or is left over from another rendering."""
    from specserve.deploy.targets import stale
    from specserve.report.console import clean, out, say, styled

    found = stale(artifacts, folder, target=to.value)
    for path, state in found:
        out(f"{state}: {clean(str(folder / path))}")
    if not found:
        say(f"up to date: {_files(len(artifacts))}")
        return
    say(f"stale: {len(found)} of {_files(len(artifacts))}")
    say(f"\n{styled('hint', 'cyan')}: `{clean(again)}` renders them again")
    raise typer.Exit(1)
