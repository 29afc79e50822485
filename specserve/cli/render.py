"""`specserve render`: one profile to files for production."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specserve.cli import options
from specserve.cli.options import flag, option, refuse_alone
from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.deploy.deployment import Deployment


RenderTarget = Literal["compose", "kubernetes", "systemd", "ray", "sglang", "monitoring"]
_CANARY = "Also run this alternative, and send it this share of the requests."
_IMAGE = "Use this image instead of the official one; name it by digest to pin it."
_OUTPUT = "Write here (default: stdout)."
_CHECK = "Write nothing; exit with 1 if the files in DIR are stale."


def render(
    profile: options.ProfileOrCommand,
    *,
    to: Annotated[RenderTarget, typer.Option("--to", help="What to deploy with.")],
    alternative: options.Alternative = None,
    canary: Annotated[str | None, option("NAME=PERCENT%", _CANARY, "--canary")] = None,
    settings: options.Settings = None,
    image: Annotated[str | None, option("IMAGE", _IMAGE, "--image")] = None,
    output: Annotated[Path | None, option("DIR", _OUTPUT, "--output", "-o")] = None,
    check: Annotated[bool, flag("--check", _CHECK)] = False,
) -> None:
    """Write the files that deploy a profile in production.

    render writes the exact launch for Docker Compose, Kubernetes, systemd or Ray, or the files for
    monitoring, by the newest vLLM version that the profile allows. specserve does not run in the
    deployment. The same profile gives the same bytes on every machine, so that you can commit the
    files and check them in CI with --check. The files name keys and tokens, and never contain them.
    With --to sglang, they serve the profile with SGLang instead of vLLM.

    \b
    specserve render configs/demo.yaml --to compose -o deploy/demo
    specserve render big.yaml --to kubernetes -o deploy/big --image REPO@sha256:…
    specserve render big.yaml --to systemd --set vllm=~=0.32.0
    specserve render big.yaml --to kubernetes --canary eagle=10% -o deploy/big
    """
    from specserve.deploy import targets
    from specserve.report.console import say
    from specserve.report.launch import print_files, say_stale, say_written

    refuse_alone("-o DIR", output is not None, check=check)
    if image is not None and to not in ("compose", "kubernetes"):
        raise UsageError(f"`--image` is for compose and kubernetes: `--to {to}` names no image")
    made_of = partial(_deployment, profile, image, tuple(settings or ()))
    made = made_of(alternative)
    if canary is not None:
        made = targets.with_canary(made, canary, made_of)
    folder = (output or Path(made.profile.file).parent).absolute()
    artifacts = targets.render(to, made, folder=str(folder))
    if output is None:
        print_files(artifacts, target=to)
    elif check:
        stale = targets.stale(artifacts, output)
        raise typer.Exit(say_stale(stale, output, total=len(artifacts)))
    else:
        changed = targets.put(artifacts, output)
        say_written(artifacts, output, changed=changed)
    for line in targets.caveats(made, to):
        say(line)


def _deployment(
    path: str, image: str | None, settings: tuple[str, ...], alternative: str | None
) -> Deployment:
    """The deployment of a profile or an alternative, cleared by the rules, without secrets."""
    from specserve.checks.prepare import prepare, refuse_secrets
    from specserve.deploy.deployment import deployment
    from specserve.plan.launch import LaunchOptions
    from specserve.profile.load import load_profile
    from specserve.report.findings import StderrNotices
    from specserve.vllm.versions import newest_in

    version = newest_in(load_profile(path, settings=settings).vllm)
    wanted = LaunchOptions(settings, alternative, vllm=version, starts=False)
    source, plan = prepare(path, wanted, notices=StderrNotices())
    refuse_secrets(source)
    return deployment(source, version=version, platform=plan.platform, image=image)
