"""`specserve upgrade`: what another vLLM does to a profile."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Annotated, Literal

import typer

from specserve.cli import options
from specserve.cli.options import option

_FROM = "The vLLM that serves it today (default: the installed one)."
_TO = "The vLLM to compare it with."
_MEASURE = "Also launch both and measure for this long, such as 10m; launches come on top."
_WHICH = "VERSION|PYTHON|WHEEL|FOLDER"
Format = Annotated[
    Literal["text", "json", "markdown"],
    typer.Option("--format", help="Output format; markdown is for a pull request."),
]


def upgrade(
    profile: options.ProfileOrCommand,
    *,
    new: Annotated[str, option(_WHICH, _TO, "--to")],
    old: Annotated[str | None, option(_WHICH, _FROM, "--from")] = None,
    assume: options.Assume = None,
    measure: Annotated[str | None, option("TIME", _MEASURE, "--measure")] = None,
    format: Format = "text",
) -> None:
    """Say what another vLLM version does to a profile, before anything runs.

    The code of both versions judges the launch, for GPUs that need not be here: what only the new
    one refuses or warns of, each value that differs although the profile does not, and the KV cache
    by the planner of each. A vLLM is an interpreter or a virtual environment, a wheel, or an
    unpacked wheel; of a version that is not installed, the tables of specserve alone are compared.

    With --measure, both sides are environments on this machine. Each is launched by its own
    interpreter, and both are sent the same prompts: speed, acceptance, KV cache, time to ready and
    greedy text are BETTER, SAME, WORSE or UNDECIDED, by the intervals of `bench`.

    Exit code 1: the new version refuses the profile, leaves less than 90 % of the KV cache, or
    something measured is WORSE.

    \b
    specserve upgrade my.yaml --to vllm-0.33.0-cp38-abi3-manylinux_2_28.whl
    specserve upgrade my.yaml --from 0.31 --to 0.33
    specserve upgrade my.yaml --from /opt/old --to /opt/new --format markdown
    specserve upgrade my.yaml --to /opt/new --measure 10m
    specserve upgrade --to 0.33 -- vllm serve org/model --max-model-len 8192
    """
    from specserve.checks.collect import CheckOptions
    from specserve.errors import FactError
    from specserve.hardware.accelerators import assume as machine_of
    from specserve.measure.values import seconds
    from specserve.profile.load import load_profile
    from specserve.report.bench import BenchView
    from specserve.report.console import out
    from specserve.report.findings import StderrNotices
    from specserve.report.page import render
    from specserve.report.upgrade import upgrade_document, upgrade_json
    from specserve.upgrade.compare import compare
    from specserve.upgrade.measure import measure_upgrade
    from specserve.upgrade.sides import side
    from specserve.vllm.versions import installed

    here = installed()
    if old is None and here is None:
        hint = "`--from` names the vLLM that serves the profile today"
        raise FactError("vLLM is not installed in specserve's environment", hint=hint)
    if measure is not None:
        seconds(measure, option="--measure", least_s=5.0)
    notices, measured = StderrNotices(), None
    machine = machine_of(assume) if assume else None
    wanted = CheckOptions(machine=machine, tell=notices.progress)
    with ExitStack() as stack:
        before, after = (
            stack.enter_context(side(text)) for text in (old or (here and here.version) or "", new)
        )
        found = compare(profile, before, after, wanted=wanted)
        try:
            if measure and found.refuses:
                notices.warn(f"not measured: vLLM {after.version} refuses the profile")
            elif measure:
                measured = measure_upgrade(
                    load_profile(profile),
                    (before, after),
                    budget=measure,
                    notices=notices,
                    open_view=BenchView,
                )
        finally:  # what the code of both says is known, whatever comes of the launches
            if format == "json":
                out(upgrade_json(found, measured))
            else:
                out(render(upgrade_document(found, measured), form=format, stream=sys.stdout))
    raise typer.Exit(int(found.is_worse or bool(measured and measured.is_worse)))
