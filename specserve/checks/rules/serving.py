"""SD1xx about the server around the engine: requests, variables, secrets, the open port."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.checks.arms import is_open
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.errors import did_you_mean
from specserve.profile.secrets import looks_secret, names_a_secret
from specserve.profile.source import COMMAND
from specserve.vllm.versions import table

_EPSILON = 1e-5  # vLLM's own: below it min_p counts as off
_DEVELOPER = {
    "VLLM_SERVER_DEV_MODE": "endpoints that reset, pause and inspect the engine",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "an endpoint that loads adapters from any path",
}
_BEHIND_THE_KEY = ("VLLM_ALLOW_RUNTIME_LORA_UPDATING",)
"""Those whose endpoints lie under /v1."""


def _speculates(ctx: Context, label: str = "speculation") -> tuple[tuple[str, str], ...]:
    """The first block of speculation, as a place beside; nothing without one."""
    return tuple((f"{path}.method", label) for path, _ in ctx.blocks[:1])


@rule("SD146", "hidden-acceptance", Severity.WARNING)
def hidden_acceptance(ctx: Context) -> Iterator[Hit]:
    """Speculation runs without the counters that show whether it helps.

    With `disable_log_stats`, vLLM publishes no speculation counters at all. Acceptance can fall to nothing without
    anyone noticing.
    Example:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {disable_log_stats: true}
    Use instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source: vllm/v1/core/sched/scheduler.py, `if not self.log_stats or not num_draft_tokens:`
    """
    speculates = _speculates(ctx)
    if ctx.profile.engine.get("disable_log_stats") is True and speculates:
        text = "the server will not report how many draft tokens are accepted"
        yield Hit("engine.disable_log_stats", text, related=speculates, help="leave it out")


@rule("SD147", "metrics-without-speculation", Severity.INFO)
def metrics_without_speculation(ctx: Context) -> Iterator[Hit]:
    """Metrics of speculation are asked for, but the profile does not speculate.

    vLLM refuses to start with them. specserve leaves the argument out of such a launch.
    Example:
        vllm: ">=0.32"
        engine: {per_request_spec_decode_metrics: summary}
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source: vllm/config/vllm.py (from 0.29), `--per-request-spec-decode-metrics requires speculative decoding `
    """
    asked = ctx.profile.engine.get("per_request_spec_decode_metrics") not in (None, "none")
    if asked and not ctx.blocks:
        text = "the profile does not speculate: this has no effect"
        yield Hit("engine.per_request_spec_decode_metrics", text, help="leave it out")


@rule("SD148", "default-min-p", Severity.ERROR)
def default_min_p(ctx: Context) -> Iterator[Hit]:
    """Every request gets a `min_p`, which vLLM refuses while it speculates.

    The server starts, but answers each request that does not set `min_p: 0` itself with status 400: `The min_p and
    logit_bias sampling parameters are not yet supported with speculative decoding.`
    Example:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {override_generation_config: {min_p: 0.05}}
    Instead: engine: {override_generation_config: {min_p: 0, top_p: 0.95}}
    Source: vllm/sampling_params.py, `The min_p and logit_bias sampling parameters `
    """
    defaults = ctx.profile.engine.get("override_generation_config")
    value = defaults.get("min_p") if isinstance(defaults, Mapping) else None
    if isinstance(value, (int, float)) and value > _EPSILON and ctx.blocks:
        yield Hit(
            "engine.override_generation_config.min_p",
            f"vLLM will refuse every request: `min_p` must be 0 with speculation; found {value:g}",
            related=_speculates(ctx, f"`{ctx.blocks[0][1].method}` speculates"),
            help="write `min_p: 0`, and use `top_p` for the same purpose",
        )


@rule("SD149", "refused-structured-output", Severity.ERROR)
def refused_structured_output(ctx: Context) -> Iterator[Hit]:
    """Structured output uses a backend that does not support speculation.

    `lm-format-enforcer` cannot take a token back, so each request with a schema, a grammar or a strict tool fails.
    Example:
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {structured_outputs_config: {backend: lm-format-enforcer}}
    Instead: engine: {structured_outputs_config: {backend: xgrammar}}
    Source: vllm/v1/structured_output/backend_lm_format_enforcer.py, `LM Format Enforcer backend does not support`
    """
    config, speculates = ctx.profile.engine.get("structured_outputs_config"), _speculates(ctx)
    if isinstance(config, Mapping) and config.get("backend") == "lm-format-enforcer" and speculates:
        yield Hit(
            "engine.structured_outputs_config.backend",
            "`lm-format-enforcer` fails every request with a schema while the server speculates",
            related=speculates,
            help="leave it out: vLLM picks `xgrammar` or `guidance`, which work with speculation",
        )


@rule("SD150", "exposed-developer-endpoints", Severity.WARNING)
def exposed_developer_endpoints(ctx: Context) -> Iterator[Hit]:
    """Developer endpoints are open to the network.

    vLLM's key guards only /v1 and similar paths. In developer mode, anyone who reaches the port can reset caches, put
    the engine to sleep, read its configuration and call methods on its workers.
    Example:
        server:
          host: 0.0.0.0
          api_key_env: MY_SERVER_KEY  # specserve: ignore[SD159] a proxy passes only /v1
        env: {VLLM_SERVER_DEV_MODE: 1}
    Instead: server: {host: 127.0.0.1}
    Source: vllm/entrypoints/launchers/api_server/routers.py (from 0.29), `if envs.VLLM_SERVER_DEV_MODE:`
    """
    for name, what in _DEVELOPER.items() if is_open(ctx.profile) else ():
        if name in _BEHIND_THE_KEY and ctx.profile.server.api_key_env:
            continue
        if ctx.profile.env.get(name, "0").strip().lower() not in ("", "0", "false"):
            yield Hit(
                f"env.{name}",
                f"`{name}` opens {what} to the network",
                related=(("server.host", "the server listens here"),),
                help="leave it out, or listen on 127.0.0.1",
            )


@rule("SD151", "missing-companion", Severity.ERROR)
def missing_companion(ctx: Context) -> Iterator[Hit]:
    """An argument of the server needs another argument, which is missing.

    vLLM ends with an error, immediately or after it has loaded the weights. Automatic tool choice needs a parser,
    adapters need LoRA, logged outputs need logged requests, per-request metrics need statistics, and a KV cache
    connector needs a role.
    Example: frontend: {enable_auto_tool_choice: true}
    Use instead: frontend: {enable_auto_tool_choice: true, tool_call_parser: hermes}
    Source:
        vllm/entrypoints/common/cli_args.py (from 0.33), `Error: --enable-auto-tool-choice requires --tool-call-parser`
        vllm/entrypoints/launchers/cli_args.py (0.29 to 0.32), `--enable-auto-tool-choice requires --tool-call-parser`
    """
    engine, frontend = ctx.profile.engine, ctx.profile.frontend
    if frontend.get("enable_auto_tool_choice") is True and not frontend.get("tool_call_parser"):
        text = "`enable_auto_tool_choice` needs a `tool_call_parser`"
        yield Hit(
            "frontend.enable_auto_tool_choice", text, help="set the parser for this model, such as `hermes`"
        )
    if frontend.get("lora_modules") and engine.get("enable_lora") is not True:
        text, help_ = "`lora_modules` needs `enable_lora`", "write `enable_lora: true` under `engine`"
        yield Hit("frontend.lora_modules", text, help=help_)
    transfer = engine.get("kv_transfer_config")
    if isinstance(transfer, Mapping) and transfer.get("kv_connector") and not transfer.get("kv_role"):
        help_ = "write `kv_role`: `kv_producer`, `kv_consumer` or `kv_both`"
        yield Hit("engine.kv_transfer_config.kv_connector", "a `kv_connector` needs a `kv_role`", help=help_)
    if frontend.get("enable_log_outputs") is True and engine.get("enable_log_requests") is not True:
        text = "`enable_log_outputs` needs `enable_log_requests`"
        help_ = "write `enable_log_requests: true` under `engine`"
        yield Hit("frontend.enable_log_outputs", text, help=help_)
    if frontend.get("enable_per_request_metrics") is True and engine.get("disable_log_stats") is True:
        text = "`enable_per_request_metrics` needs the statistics that `disable_log_stats` switches off"
        related = (("engine.disable_log_stats", "switched off here"),)
        yield Hit("frontend.enable_per_request_metrics", text, related=related)


@rule("SD159", "unguarded-invocations", Severity.INFO)
def unguarded_invocations(ctx: Context) -> Iterator[Hit]:
    """The server is open to the network, and its key does not guard everything.

    vLLM asks for the key only under /v1, /v2 and /inference. /invocations answers prompts without a key, and /metrics
    shows the model's name and load to anyone.
    Example: server: {host: 0.0.0.0, api_key_env: MY_SERVER_KEY}
    Use instead: server: {host: 127.0.0.1, api_key_env: MY_SERVER_KEY}
    Source:
        vllm/entrypoints/serve/middleware/authenticate.py (from 0.29), `request path doesn't start with GUARDED_PREFIX`
    """
    if ctx.profile.server.api_key_env and is_open(ctx.profile):
        yield Hit(
            "server.api_key_env",
            "the key guards /v1, /v2 and /inference only: /invocations answers prompts without it",
            related=(("server.host", "open to the network"),),
            help="put a proxy in front that passes only /v1",
        )


_HARMLESS = r"(?i)|[./~$].*|true|false|yes|no|on|off|none|null|empty|dummy|[-+]?[0-9.]{1,9}[kKmMgG]?"
"""Values that are no secret under any name: paths, references, switches, counts, placeholders."""
_MOVED = {
    "VLLM_ATTENTION_BACKEND": "write `attention_backend` under `engine`",
    "VLLM_FLASH_ATTN_VERSION": "write `attention_config: {flash_attn_version: …}` under `engine`",
    "VLLM_ALL2ALL_BACKEND": "write `all2all_backend` under `engine`",
    "VLLM_USE_V1": "leave it out: there is no other engine any more",
    "VLLM_HOST": "write `server.host`",
}
"""What became of variables that articles still name."""
_NOT_READ_BY_VLLM = ("VLLM_WHEEL_LOCATION",)  # vLLM's set-up reads it


@rule("SD106", "unknown-variable", Severity.WARNING)
def unknown_variable(ctx: Context) -> Iterator[Hit]:
    """A `VLLM_…` variable that vLLM does not know.

    vLLM ignores it after one warning, or refuses to start under `fail_on_environ_validation`. A misspelt switch does
    nothing.
    Example: env: {VLLM_LOGING_LEVEL: DEBUG}
    Use instead: env: {VLLM_LOGGING_LEVEL: DEBUG}
    Source: vllm/platforms/interface.py (from 0.31), `Unknown vLLM environment variable detected`
    """
    names = [name for name in ctx.profile.env if name.startswith("VLLM_") and name not in _NOT_READ_BY_VLLM]
    strict = ctx.profile.engine.get("fail_on_environ_validation") is True
    known = {name for version in ctx.judged for name in table(version).env} if names else set()
    for name in names:
        if name not in known:
            guess = did_you_mean(name, known)
            yield Hit(
                f"env.{name}",
                f"vLLM knows no variable `{name}`",
                related=(("engine.fail_on_environ_validation", "vLLM will refuse to start"),) * strict,
                help=_MOVED.get(name) or (f"did you mean `{guess}`?" if guess else "leave it out"),
                at_key=True,
                severity=Severity.ERROR if strict else None,
            )


@rule("SD107", "secret-in-profile", Severity.ERROR, policy=True)
def secret_in_profile(ctx: Context) -> Iterator[Hit]:
    """A value that looks like a key, a token or a password.

    Profiles are committed, printed and rendered. A secret in a profile is a leaked secret.
    Example: env: {VLLM_API_KEY: "a-real-key"}
    Use instead: server: {api_key_env: MY_SERVER_KEY}
    Source: specserve, profile/secrets.py
    """
    found = {
        f"env.{name}": f"`{name}` looks like a secret"
        for name, value in ctx.profile.env.items()
        if (names_a_secret(name) and not re.fullmatch(_HARMLESS, value)) or looks_secret(value)
    }
    target = ctx.profile.target
    sections: dict[str, Any] = {
        "engine": ctx.profile.engine,
        "frontend": ctx.profile.frontend,
        "target": {name: getattr(target, name) for name in ("model", "revision", "tokenizer")},
        **{path: block.keys for path, block in ctx.blocks},
    }
    found |= {
        path: f"`{path}` looks like a secret" for path, text in _texts(sections, "") if looks_secret(text)
    }
    for path, text in found.items():
        help_ = "export it where the server is started; `server.api_key_env` names the server's own key"
        yield Hit(path, text, help=help_)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text below a value, with its dotted path."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value


@rule("SD108", "open-bind", Severity.ERROR, policy=True)
def open_bind(ctx: Context) -> Iterator[Hit]:
    """The server listens on the network without a key.

    Anyone who reaches the port can use the model. Even with a key, vLLM guards only its API's prefixes. Anyone can
    still call /metrics, /health and /invocations. Encryption does not restrict access, unless each client must show a
    certificate (`ssl_cert_reqs: 2` with `ssl_ca_certs`). A Unix socket (`uds`) does restrict it.
    Example: server: {host: 0.0.0.0}
    Use instead:
        server:
          host: 0.0.0.0
          api_key_env: MY_SERVER_KEY  # specserve: ignore[SD159] a proxy passes only /v1
    Source:
        vllm/entrypoints/serve/middleware/authenticate.py (from 0.29), `request path doesn't start with GUARDED_PREFIX`
    """
    server = ctx.profile.server
    if is_open(ctx.profile) and not server.api_key_env:
        is_command = ctx.profile.file == COMMAND
        key = "export `VLLM_API_KEY`" if is_command else "name a variable in `server.api_key_env`"
        yield Hit(
            "server.host",
            f"the server listens on `{server.host}` without an API key",
            notes=("a key guards only /v1 and similar paths; /metrics, /health and /invocations stay open",),
            help=f"{key}, or listen on 127.0.0.1 behind a proxy",
        )
