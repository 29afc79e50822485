"""SD1xx about the server around the engine: what requests it would refuse, what it hides, what it opens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specserve.checks.blocks import blocks
from specserve.checks.reach import is_open
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity

_EPSILON = 1e-5  # vLLM's own: below it min_p counts as off
_DEVELOPER = {
    "VLLM_SERVER_DEV_MODE": "endpoints that reset, pause and inspect the engine",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "an endpoint that loads adapters from any path",
}
_BEHIND_THE_KEY = frozenset({"VLLM_ALLOW_RUNTIME_LORA_UPDATING"})
"""Those whose endpoints lie under /v1."""


@rule("SD146", "hidden-acceptance", Severity.WARNING)
def hidden_acceptance(ctx: Context) -> Iterator[Hit]:
    """Speculation runs without the counters that show whether it helps.

    ## Why is this bad?
    With `disable_log_stats` vLLM publishes no speculation counters at all: acceptance can fall to nothing and
    nobody sees it.

    ## Example
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {disable_log_stats: true}

    ## Use instead
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}

    ## Source
    vllm/v1/core/sched/scheduler.py, `if not self.log_stats or not num_draft_tokens:`
    """
    if ctx.profile.engine.get("disable_log_stats") is True:
        for path, _ in blocks(ctx):
            yield Hit(
                "engine.disable_log_stats",
                "the server will tell nobody how many drafts are accepted",
                related=((f"{path}.method", "speculation"),),
                help="leave it out",
            )
            return


@rule("SD147", "metrics-without-speculation", Severity.INFO)
def metrics_without_speculation(ctx: Context) -> Iterator[Hit]:
    """Metrics of speculation are asked for where nothing speculates.

    ## Why is this bad?
    vLLM refuses to start with them; specserve leaves the argument out of such a launch.

    ## Example
        vllm: ">=0.32"
        engine: {per_request_spec_decode_metrics: summary}

    ## Use instead
        vllm: ">=0.32"
        engine: {per_request_spec_decode_metrics: summary}
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}

    ## Source
    vllm/config/vllm.py (from 0.29), `--per-request-spec-decode-metrics requires speculative decoding `
    """
    asked = ctx.profile.engine.get("per_request_spec_decode_metrics") not in (None, "none")
    if asked and ctx.profile.speculation is None and not ctx.profile.alternatives:
        text = "the profile does not speculate: this has no effect"
        yield Hit("engine.per_request_spec_decode_metrics", text, help="leave it out")


@rule("SD148", "default-min-p", Severity.ERROR)
def default_min_p(ctx: Context) -> Iterator[Hit]:
    """Every request gets a `min_p`, which vLLM refuses while it speculates.

    ## Why is this bad?
    The server starts, and answers each request that does not say otherwise with status 400: `The min_p and
    logit_bias sampling parameters are not yet supported with speculative decoding.`

    ## Example
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {override_generation_config: {min_p: 0.05}}

    ## Use instead
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {override_generation_config: {min_p: 0, top_p: 0.95}}

    ## Source
    vllm/sampling_params.py, `The min_p and logit_bias sampling parameters `
    """
    defaults = ctx.profile.engine.get("override_generation_config")
    value = defaults.get("min_p") if isinstance(defaults, Mapping) else None
    if isinstance(value, (int, float)) and value > _EPSILON:
        for path, block in blocks(ctx):
            yield Hit(
                "engine.override_generation_config.min_p",
                f"vLLM will refuse every request: it has no `min_p` with speculation; found {value:g}",
                related=((f"{path}.method", f"`{block.method}` speculates"),),
                help="write `min_p: 0`, and `top_p` for what it was meant to do",
            )
            return


@rule("SD149", "refused-structured-output", Severity.ERROR)
def refused_structured_output(ctx: Context) -> Iterator[Hit]:
    """Structured output is left to a backend that cannot speculate.

    ## Why is this bad?
    `lm-format-enforcer` cannot take a token back, so each request with a schema, a grammar or a strict tool fails.

    ## Example
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {structured_outputs_config: {backend: lm-format-enforcer}}

    ## Use instead
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
        engine: {structured_outputs_config: {backend: xgrammar}}

    ## Source
    vllm/v1/structured_output/backend_lm_format_enforcer.py, `LM Format Enforcer backend does not support`
    """
    config = ctx.profile.engine.get("structured_outputs_config")
    if isinstance(config, Mapping) and config.get("backend") == "lm-format-enforcer":
        for path, _ in blocks(ctx):
            yield Hit(
                "engine.structured_outputs_config.backend",
                "`lm-format-enforcer` fails every request with a schema while the server speculates",
                related=((f"{path}.method", "speculation"),),
                help="leave it out: vLLM picks `xgrammar` or `guidance`, which can",
            )
            return


@rule("SD150", "exposed-developer-endpoints", Severity.WARNING)
def exposed_developer_endpoints(ctx: Context) -> Iterator[Hit]:
    """Endpoints for developers on a server that the network reaches.

    ## Why is this bad?
    vLLM's key guards /v1 and its like only. In developer mode whoever reaches the port can reset caches, put the
    engine to sleep, read its configuration and call methods on its workers.

    ## Example
        server:
          host: 0.0.0.0
          api_key_env: MY_SERVER_KEY  # specserve: ignore[SD159] a proxy passes /v1 alone
        env: {VLLM_SERVER_DEV_MODE: 1}

    ## Use instead
        server: {host: 127.0.0.1}
        env: {VLLM_SERVER_DEV_MODE: 1}

    ## Source
    vllm/entrypoints/launchers/api_server/routers.py (from 0.29), `if envs.VLLM_SERVER_DEV_MODE:`
    """
    if not is_open(ctx.profile):
        return
    for name, what in _DEVELOPER.items():
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
    """An argument of the server lacks another one that it needs.

    ## Why is this bad?
    vLLM ends with an error, at once or once the weights are loaded: automatic tool choice needs a parser, adapters
    need LoRA, logged outputs need logged requests, per-request metrics need statistics, a connector of KV caches
    needs a role.

    ## Example
        frontend: {enable_auto_tool_choice: true}

    ## Use instead
        frontend: {enable_auto_tool_choice: true, tool_call_parser: hermes}

    ## Source
    vllm/entrypoints/common/cli_args.py (from 0.33), `Error: --enable-auto-tool-choice requires --tool-call-parser`
    vllm/entrypoints/launchers/cli_args.py (0.29 to 0.32), `--enable-auto-tool-choice requires --tool-call-parser`
    """
    engine, frontend = ctx.profile.engine, ctx.profile.frontend
    if frontend.get("enable_auto_tool_choice") is True and not frontend.get("tool_call_parser"):
        text = "`enable_auto_tool_choice` needs a `tool_call_parser`"
        yield Hit("frontend.enable_auto_tool_choice", text, help="name the parser of the model: `hermes`, …")
    if frontend.get("lora_modules") and engine.get("enable_lora") is not True:
        text = "`lora_modules` needs `enable_lora`"
        yield Hit("frontend.lora_modules", text, help="write `enable_lora: true` under `engine`")
    transfer = engine.get("kv_transfer_config")
    if isinstance(transfer, Mapping) and transfer.get("kv_connector") and not transfer.get("kv_role"):
        text = "a `kv_connector` needs a `kv_role`"
        roles = "`kv_producer`, `kv_consumer` or `kv_both`"
        yield Hit("engine.kv_transfer_config.kv_connector", text, help=f"write `kv_role`: {roles}")
    if frontend.get("enable_log_outputs") is True and engine.get("enable_log_requests") is not True:
        text = "`enable_log_outputs` needs `enable_log_requests`"
        yield Hit(
            "frontend.enable_log_outputs", text, help="write `enable_log_requests: true` under `engine`"
        )
    if frontend.get("enable_per_request_metrics") is True and engine.get("disable_log_stats") is True:
        yield Hit(
            "frontend.enable_per_request_metrics",
            "`enable_per_request_metrics` needs the statistics that `disable_log_stats` switches off",
            related=(("engine.disable_log_stats", "switched off here"),),
        )


@rule("SD159", "unguarded-invocations", Severity.INFO)
def unguarded_invocations(ctx: Context) -> Iterator[Hit]:
    """The server is open to the network, and its key does not guard everything.

    ## Why is this bad?
    vLLM asks for the key under /v1, /v2 and /inference alone. /invocations answers prompts without one, and
    /metrics tells everybody the model's name and its load.

    ## Example
        server: {host: 0.0.0.0, api_key_env: MY_SERVER_KEY}

    ## Use instead
        server: {host: 127.0.0.1, api_key_env: MY_SERVER_KEY}

    ## Source
    vllm/entrypoints/serve/middleware/authenticate.py (from 0.29), `The request path doesn't start with GUARDED_PREFIX`
    """
    if ctx.profile.server.api_key_env and is_open(ctx.profile):
        yield Hit(
            "server.api_key_env",
            "the key guards /v1, /v2 and /inference only: /invocations answers prompts without it",
            related=(("server.host", "open to the network"),),
            help="let a proxy in front pass /v1 alone",
        )
