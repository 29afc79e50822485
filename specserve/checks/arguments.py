"""SD1xx about vLLM's arguments and variables: names, places and values, for each version of the range."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.plan.arguments import ArgumentProblem, problems
from specserve.plan.support import table
from specserve.profile.problems import did_you_mean

_SECRET_NAME = re.compile(r"(^|_)(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|ACCESS_KEY)(_|$)", re.I)
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{16,}|ghp_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16})\b"
)
_LOOPBACK = ("127.", "localhost", "::1", "[::1]")
_FOREIGN_VLLM_NAMES = frozenset({"VLLM_WHEEL_LOCATION"})


def _hits(ctx: Context, *kinds: str) -> Iterator[Hit]:
    """Each problem once, with the versions that have it where they do not all have it."""
    seen: dict[str, tuple[ArgumentProblem, list[str]]] = {}
    for version in ctx.versions:
        for problem in problems(ctx.profile, table(version)):
            if problem.kind in kinds:
                seen.setdefault(problem.path, (problem, []))[1].append(version)
    for path, (problem, versions) in seen.items():
        message = problem.message
        notes: tuple[str, ...] = ()
        if problem.kind == "unknown" and len(versions) > 1:
            message = message.replace(f"vLLM {versions[0]} has", "vLLM has", 1)
        if len(versions) < len(ctx.versions):
            notes = (
                f"the profile's range holds vLLM {', '.join(ctx.versions)}; this is so in {', '.join(versions)}",
            )
        yield Hit(path, message, notes=notes, help=problem.help)


@rule("SD102", "unknown-argument", Severity.ERROR)
def unknown_argument(ctx: Context) -> Iterator[Hit]:
    """An argument that a vLLM version of the profile's range does not have.

    ## Why is this bad?
    vLLM ends with a usage error, or with pydantic's `Unexpected keyword argument`.

    ## Example
        engine: {max_num_sequences: 64}

    ## Use instead
        engine: {max_num_seqs: 64}

    ## Source
    vllm/engine/arg_utils.py, `class EngineArgs`
    """
    return _hits(ctx, "unknown")


@rule("SD103", "misplaced-argument", Severity.ERROR)
def misplaced_argument(ctx: Context) -> Iterator[Hit]:
    """An argument that has its own place in a profile, or none.

    ## Why is this bad?
    The same setting in two places is one too many: the later flag wins, and nobody sees which one that is.

    ## Example
        engine: {tensor_parallel_size: 2}

    ## Use instead
        target: {model: org/target, tensor_parallel_size: 2}

    ## Source
    specserve, plan/arguments.py
    """
    return _hits(ctx, "elsewhere", "refused")


@rule("SD105", "wrong-argument-value", Severity.ERROR)
def wrong_argument_value(ctx: Context) -> Iterator[Hit]:
    """A value of a type, or outside of the choices, that vLLM takes.

    ## Why is this bad?
    vLLM ends with a usage error.

    ## Example
        engine: {max_num_seqs: many}

    ## Use instead
        engine: {max_num_seqs: 64}

    ## Source
    vllm/engine/arg_utils.py, `class EngineArgs`
    """
    return _hits(ctx, "value")


@rule("SD106", "unknown-variable", Severity.WARNING)
def unknown_variable(ctx: Context) -> Iterator[Hit]:
    """A `VLLM_…` variable that vLLM does not know.

    ## Why is this bad?
    vLLM ignores it after one warning, or refuses to start under `fail_on_environ_validation`; a misspelt
    switch is a switch that does nothing.

    ## Example
        env: {VLLM_LOGING_LEVEL: DEBUG}

    ## Use instead
        env: {VLLM_LOGGING_LEVEL: DEBUG}

    ## Source
    vllm/envs.py, `environment_variables`
    """
    known = {name for version in ctx.versions for name in table(version).env}
    for name in ctx.profile.env:
        if name.startswith("VLLM_") and name not in known | _FOREIGN_VLLM_NAMES:
            guess = did_you_mean(name, known)
            text = f"did you mean `{guess}`?" if guess else "leave it out"
            yield Hit(f"env.{name}", f"vLLM knows no variable `{name}`", help=text)


@rule("SD107", "secret-in-profile", Severity.ERROR)
def secret_in_profile(ctx: Context) -> Iterator[Hit]:
    """A value that looks like a key, a token or a password.

    ## Why is this bad?
    Profiles are committed, printed and rendered; a secret in one is a leaked secret.

    ## Example
        env: {HF_TOKEN: "a-real-token"}

    ## Use instead
        server: {api_key_env: MY_SERVER_KEY}

    ## Source
    specserve: keys stand in the environment only
    """
    help_text = "export it where the server is started; `server.api_key_env` names the server's own key"
    for name, value in ctx.profile.env.items():
        named = _SECRET_NAME.search(name) and value and not value.startswith("/")
        if named or _SECRET_VALUE.search(value):
            yield Hit(f"env.{name}", f"`{name}` looks like a secret", help=help_text)
    for path, text in _texts(ctx):
        if _SECRET_VALUE.search(text):
            yield Hit(path, f"`{path}` looks like a secret", help=help_text)


def _texts(ctx: Context) -> Iterator[tuple[str, str]]:
    for section, values in (("engine", ctx.profile.engine), ("frontend", ctx.profile.frontend)):
        for name, value in values.items():
            yield f"{section}.{name}", str(value)
    if ctx.profile.server.api_key_env:
        yield "server.api_key_env", ctx.profile.server.api_key_env


@rule("SD108", "open-bind", Severity.ERROR)
def open_bind(ctx: Context) -> Iterator[Hit]:
    """The server listens on the network without a key.

    ## Why is this bad?
    Whoever reaches the port can use the model. Even with a key, vLLM guards /v1 only: /metrics, /health and
    /invocations answer everybody.

    ## Example
        server: {host: 0.0.0.0}

    ## Use instead
        server: {host: 0.0.0.0, api_key_env: MY_SERVER_KEY}

    ## Source
    vllm/entrypoints/openai/server_utils.py, `class AuthenticationMiddleware`
    """
    server = ctx.profile.server
    if not server.host.startswith(_LOOPBACK) and not server.api_key_env:
        yield Hit(
            "server.host",
            f"the server listens on `{server.host}` without an API key",
            notes=("a key guards /v1 only; /metrics, /health and /invocations stay open",),
            help="name a variable in `server.api_key_env`, or listen on 127.0.0.1 behind a proxy",
        )


@rule("SD111", "remote-code", Severity.WARNING)
def remote_code(ctx: Context) -> Iterator[Hit]:
    """The profile lets vLLM run Python code that comes with a model.

    ## Why is this bad?
    `trust_remote_code` runs whatever the repository holds on the day of the download.

    ## Example
        engine: {trust_remote_code: true}

    ## Use instead
        engine: {trust_remote_code: false}

    ## Source
    vllm/config/model.py, `trust_remote_code`
    """
    if ctx.profile.engine.get("trust_remote_code") is True:
        text = "vLLM will run code that comes with the model (`trust_remote_code`)"
        yield Hit("engine.trust_remote_code", text, help="pin `target.revision` to a commit that was read")
