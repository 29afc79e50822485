"""`specserve render`: one profile to files for production."""

from __future__ import annotations

import shlex
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import (
    Alternative,
    ProfileOrCommand,
    Settings,
    TextOrJson,
    flag,
    text_option,
)
from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.deploy.deployment import Deployment
    from specserve.plan.launch import LaunchOptions


class RenderTarget(StrEnum):
    "What to deploy with."

    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"
    RAY = "ray"
    SGLANG = "sglang"
    MONITORING = "monitoring"


def render(
    context: typer.Context,
    profile: ProfileOrCommand,
    *,
    to: Annotated[RenderTarget, typer.Option("--to", help="What to deploy with.", show_default=False)],
    output: Annotated[
        Path | None, text_option("DIR", "Write here (default: stdout).", "--output", "-o")
    ] = None,
    check: Annotated[
        bool, flag("--check", "Write nothing; exit with 1 if the files in DIR are stale.")
    ] = False,
    force: Annotated[bool, flag("--force", "Overwrite files that specserve did not write.")] = False,
    image: Annotated[
        str | None,
        text_option(
            "IMAGE", "Use this image instead of the official one; name it by digest to pin it.", "--image"
        ),
    ] = None,
    alternative: Alternative = None,
    canary: Annotated[
        str | None,
        text_option(
            "NAME=PERCENT%", "Also run this alternative, and send it this share of the requests.", "--canary"
        ),
    ] = None,
    plain_pool: Annotated[
        bool,
        flag(
            "--plain-pool",
            "Also run servers without speculation, for requests that ask for them by a header.",
        ),
    ] = False,
    vllm: Annotated[
        str | None,
        text_option(
            "VERSION", "Write for this vLLM version (default: the newest that the profile allows).", "--vllm"
        ),
    ] = None,
    no_check: Annotated[bool, flag("--no-check", "Write even if the rules find errors.")] = False,
    settings: Settings = None,
    format: Annotated[
        TextOrJson, typer.Option("--format", help="Output format without -o: the text, or JSON of all files.")
    ] = TextOrJson.TEXT,
) -> None:
    """Write the files that deploy a profile in production.

    render writes the exact launch for Docker Compose, Kubernetes, systemd or Ray, or the files for monitoring.
    specserve does not run in the deployment. The same profile gives the same bytes on every machine, so that you can
    commit the files and check them in CI with --check. The files name keys and tokens, and never contain them.
    With --to sglang, they serve the profile with SGLang instead of vLLM. docs/render.md says what is in which file.

    \b
    specserve render configs/demo.yaml --to compose -o deploy/demo
    specserve render big.yaml --to kubernetes -o deploy/big --image REPO@sha256:…
    specserve render big.yaml --to systemd
    specserve render big.yaml --to kubernetes -o deploy/big --check
    specserve render big.yaml --to kubernetes --canary eagle=10% -o deploy/big
    """
    from functools import partial

    from specserve.deploy import targets
    from specserve.plan.launch import LaunchOptions
    from specserve.report.console import say
    from specserve.report.launch import print_files, say_stale, say_written

    _refuse_contradictions(output, check=check, force=force, format=format)
    options = LaunchOptions(
        settings=tuple(settings or ()),
        vllm=vllm,
        check=not no_check,
        starts=False,
        whole=True,
    )
    made_of = partial(_made, profile, image, options)
    made = replace(made_of(alternative), has_plain_pool=plain_pool)
    if canary is not None:
        made = targets.with_canary(made, canary, made_of)
    folder = (output or Path(made.profile.file).parent).absolute()
    artifacts = targets.render(to.value, made, folder=str(folder))
    if output is None:
        print_files(artifacts, target=to.value, as_json=format is TextOrJson.JSON)
    elif check:
        stale = targets.stale(artifacts, output, target=to.value)
        again = _command(context, profile, "--to", to.value, "-o", str(output))
        raise typer.Exit(say_stale(stale, output, total=len(artifacts), again=again))
    else:
        changed = targets.put(artifacts, output, force=force)
        found = targets.stale(artifacts, output, target=to.value)
        say_written(artifacts, output, changed=changed, found=found)
    for line in targets.caveats(made, to.value):
        say(line)


def _made(profile: str, image: str | None, options: LaunchOptions, alternative: str | None) -> Deployment:
    """The deployment of a profile or one of its alternatives, once the rules have cleared it."""
    from specserve.checks.prepare import prepare
    from specserve.checks.run import examined
    from specserve.deploy.deployment import deployment
    from specserve.deploy.weights import locked_bytes
    from specserve.diagnostics import Severity
    from specserve.errors import CheckFailed
    from specserve.profile.load import load_profile
    from specserve.report.findings import StderrNotices
    from specserve.vllm.versions import newest_in

    version = options.vllm or newest_in(load_profile(profile, settings=options.settings).vllm)
    asked = replace(options, alternative=alternative, vllm=version)
    source, plan = prepare(profile, asked, notices=StderrNotices())
    if secrets := [item for item in examined(source).findings if item.code == "SD107"]:
        found = tuple(replace(item, severity=Severity.ERROR) for item in secrets)
        raise CheckFailed(f"`{source.file}` contains secrets, which no rendered file may", findings=found)
    weights = locked_bytes(source)
    return deployment(source, version=version, platform=plan.platform, image=image, weights_bytes=weights)


_CHANGE_THE_FILES = (
    "alternative", "canary", "plain_pool", "image", "vllm", "no_check", "settings",
)  # fmt: skip


def _command(context: typer.Context, *words: str) -> str:
    """The command that renders these files: as it was given, without `--check`."""
    given = ["specserve", "render", *words]
    for name in _CHANGE_THE_FILES:
        flag, value = "--set" if name == "settings" else f"--{name.replace('_', '-')}", context.params[name]
        for each in value if isinstance(value, (list, tuple)) else [value]:
            given += [flag] if each is True else [flag, str(each)] if each else []
    return shlex.join(given)


def _refuse_contradictions(output: Path | None, *, check: bool, force: bool, format: TextOrJson) -> None:
    if (check or force) and output is None:
        raise UsageError(
            f"`--{'check' if check else 'force'}` applies to the files in a folder, so it needs `-o DIR`"
        )
    if format is TextOrJson.JSON and output is not None:
        raise UsageError("`--format` and `-o` cannot be combined: with `-o` the files go to a folder")
