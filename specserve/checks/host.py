"""SD4xx: vLLM versions, and the machine that a plan is to start on."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.plan.launchplan import FromEnv
from specserve.vllm.versions import known_versions, reaches_newer

_NOT_COMPILED = ("compilation_config", "optimization_level", "enable_lora")
"""Engine arguments that may switch compilation off; what they say is vLLM's to judge."""
_NOT_COMPILED_ENV = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "VLLM_CPU_CI_ENV")


@rule("SD401", "missing-compiler", Severity.ERROR, needs="host")
def missing_compiler(ctx: Context) -> Iterator[Hit]:
    """The CPU engine is to compile the model, and this machine has no C++ compiler.

    ## Why is this bad?
    vLLM loads the weights, and dies half a minute later with `InvalidCxxCompiler`.

    ## Example
        engine: {enforce_eager: false}

    ## Use instead
        engine: {enforce_eager: true}

    ## Source
    vllm/platforms/cpu.py, `backend = "eager" if envs.VLLM_CPU_CI_ENV else "inductor"`
    """
    plan, host = ctx.plan, ctx.host
    if plan is None or host is None or plan.platform != "cpu" or host.compiler is not None:
        return
    kwargs = plan.engine_kwargs
    told = any(kwargs.get(name) for name in _NOT_COMPILED) or kwargs.get("optimization_level") == 0
    switched = any(isinstance(plan.env.get(name), (str, FromEnv)) for name in _NOT_COMPILED_ENV)
    if not kwargs.get("enforce_eager") and not told and not switched:
        yield Hit(
            "engine.enforce_eager",
            "vLLM would compile the model on this machine, which has no C++ compiler",
            help="write `enforce_eager: true` under `engine`, or install g++",
        )


@rule("SD402", "unknown-vllm", Severity.ERROR)
def unknown_vllm(ctx: Context) -> Iterator[Hit]:
    """The profile's `vllm` range holds no version that this specserve knows.

    ## Why is this bad?
    Nothing can be planned for such a version. Where the range holds newer versions only, the profile is
    judged by the newest one that is known, and this finding is no more than an information.

    ## Example
        vllm: ">=0.20,<0.21"

    ## Use instead
        vllm: ">=0.32,<0.34"

    ## Source
    specserve, vllm/tables
    """
    if ctx.versions:
        return
    spec = ctx.profile.vllm or ""
    newest = known_versions()[-1]
    newer = reaches_newer(spec)
    yield Hit(
        "vllm",
        f"no vLLM that this specserve knows is in `{spec}`",
        notes=(f"the arguments are judged as those of vLLM {newest}",) if newer else (),
        help=f"it knows {', '.join(known_versions())}",
        severity=Severity.INFO if newer else None,
    )
