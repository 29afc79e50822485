"""`specserve plan`, `diff` and `render`: a launch as a command, beside another, as files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specserve.cli import options
from specserve.cli.options import argument, flag, option, refuse_alone
from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.deploy.deployment import Deployment

Engine = Literal["vllm", "sglang"]
_VLLM = "Plan for this vLLM version (default: the installed one)."
_LAUNCHES = "A profile; for B also `--` followed by a vLLM command."
_DERIVE = "Compare A with this one of its `alternatives`, or with `baseline`."
RenderTarget = Literal["compose", "kubernetes", "systemd", "ray", "sglang", "monitoring"]
_CANARY = "Also run this alternative, and send it this share of the requests."
_IMAGE = "Use this image instead of the official one; name it by digest to pin it."
_OUTPUT = "Write here (default: stdout)."
_CHECK = "Write nothing; exit with 1 if the files in DIR are stale."


def plan(
    profile: options.ProfileOrCommand,
    *,
    alternative: options.Alternative = None,
    settings: options.Settings = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="The engine that serves the profile.")
    ] = "vllm",
    vllm: Annotated[str | None, option("VERSION", _VLLM, "--vllm")] = None,
    format: options.Format = "text",
) -> None:
    """Print the exact launch: program, arguments, environment.

    The text is a command to paste into a shell, and says what specserve adds to the profile, and
    why. If vLLM is installed, the plan is for this machine: it starts the same server as `up`. With
    --vllm, without an installed vLLM, or if that one does not support the accelerators of the
    profile, the plan leaves out what depends on the machine. A profile for several nodes gives one
    command for each node. With --engine sglang, it is SGLang's command, and a setting that has no
    counterpart there is an error. `check -v` shows what vLLM makes of the launch.

    \b
    specserve plan configs/demo.yaml
    specserve plan configs/llama70b-8b.yaml --vllm 0.33 --format json
    specserve plan configs/llama33-70b-eagle3.yaml --engine sglang
    specserve plan -- vllm serve org/model --max-model-len 8192
    """
    from specserve.checks.prepare import prepare
    from specserve.plan.launch import LaunchOptions
    from specserve.plan.launchplan import node_count
    from specserve.profile.load import load_profile
    from specserve.report.console import say
    from specserve.report.findings import StderrNotices
    from specserve.report.launch import print_plans, print_sglang
    from specserve.vllm.versions import newest_in

    wanted = LaunchOptions(tuple(settings or ()), alternative, vllm=vllm, starts=False)
    as_json = format == "json"
    if engine == "sglang" and vllm is None:
        version = newest_in(load_profile(profile, settings=wanted.settings).vllm)
        wanted = replace(wanted, vllm=version)
    source, made = prepare(profile, wanted, notices=StderrNotices())
    if engine == "sglang":
        print_sglang(source, as_json=as_json)
        return
    nodes = range(node_count(source))
    if len(nodes) == 1:
        print_plans([made], as_json=as_json)
        return
    if not source.engine.get("master_addr"):
        leader = "engine.master_addr=ADDRESS_OF_NODE_0"
        wanted = replace(wanted, settings=(*wanted.settings, leader))
    each = [replace(wanted, node=rank) for rank in nodes]
    print_plans([prepare(profile, one)[1] for one in each], as_json=as_json)
    say("# `up --node-rank N --set engine.master_addr=ADDRESS_OF_NODE_0` starts each node")


def diff(
    launches: Annotated[list[str], argument("A [B]", _LAUNCHES)],
    *,
    alternative: Annotated[str | None, option("NAME", _DERIVE, "--alternative")] = None,
    format: options.Format = "text",
) -> None:
    """Compare two launches, and show where each value comes from.

    diff compares arguments and environment, for the newest vLLM version that both allow. The exit
    code is 0, as with `git diff`.

    \b
    specserve diff configs/qwen3-8b-draft.yaml configs/qwen3-8b-dflash.yaml
    specserve diff configs/llama70b-8b.yaml --alternative ngram
    specserve diff my.yaml -- vllm serve org/model --max-model-len 8192
    """
    from specserve.plan.launch import sides
    from specserve.plan.launchplan import compare
    from specserve.profile.load import load_profile, with_alternative
    from specserve.report.console import out, say
    from specserve.report.launch import difference_text
    from specserve.report.text import count, json_document

    if len(launches) != (1 if alternative else 2):
        text = "`specserve diff` takes two launches, or one and `--alternative`"
        raise UsageError(f"{text}; found {len(launches)}")
    named = [(name, load_profile(name)) for name in launches]
    if alternative:
        label = f"{launches[0]} (alternative {alternative})"
        named.append((label, with_alternative(named[0][1], alternative)))
    a, b = sides(*named)
    found = compare(a, b)
    if format == "json":
        out(json_document(found))
    elif any(found.values()) or a.plan.vllm != b.plan.vllm:
        out(difference_text(a, b, found))
        say(f"Found {count(sum(map(len, found.values())), 'difference')}")
    else:
        say("No difference")


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
