"""SD107, SD108, SD146, SD148: the server around the engine: variables, secrets, the open port."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.checks.rule import ERROR, WARNING, Context, Violation, Violations, rule
from specserve.models.config import section
from specserve.profile.schema import Profile
from specserve.profile.secrets import holds_a_secret
from specserve.profile.source import COMMAND

_EPSILON = 1e-5  # below it, vLLM takes a sampling parameter for zero (sampling_params.py)
_LOOPBACK = re.compile(r"127(\.\d+){3}|localhost|::1", re.I)
_CLIENT_CERTIFICATE = 2  # ssl.CERT_REQUIRED


def is_open(profile: Profile) -> bool:
    """Whether the network reaches the server without a certificate of its own."""
    frontend = profile.frontend
    # without a certificate it speaks plain HTTP, and asks nobody for one (uvicorn, `is_ssl`)
    encrypted = bool(frontend.get("ssl_certfile") or frontend.get("ssl_keyfile"))
    certified = encrypted and bool(frontend.get("ssl_ca_certs"))
    certified = certified and frontend.get("ssl_cert_reqs") == _CLIENT_CERTIFICATE
    return not (_LOOPBACK.fullmatch(profile.server.host) or frontend.get("uds") or certified)


@rule("SD107", ERROR, policy=True)
def secret_in_profile(ctx: Context) -> Violations:
    """A value that looks like a key, a token or a password."""
    target = ctx.profile.target
    sections: dict[str, Any] = {
        "env": ctx.profile.env,
        "engine": ctx.engine,
        "frontend": ctx.profile.frontend,
        "target": {name: getattr(target, name) for name in ("model", "revision", "tokenizer")},
        **{variant.path: variant.block.keys for variant in ctx.variants},
    }
    for path, name, text in _texts(sections, ""):
        if holds_a_secret(name, text):
            words = f"`{path.removeprefix('env.')}` looks like a secret"
            help_ = "export it where the server starts; `server.api_key_env` names the server's own"
            yield Violation(path, words, help=help_)


def _texts(value: Any, path: str, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Every text below a value, with its dotted path and the key that it or its list has."""
    if isinstance(value, str):
        yield path, name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}" if path else str(key), str(key))
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]", name)


@rule("SD108", ERROR, policy=True)
def open_bind(ctx: Context) -> Violations:
    """The server listens on the network without a key, or with more open than the key guards."""
    server = ctx.profile.server
    if not is_open(ctx.profile):
        return
    opened = {"VLLM_SERVER_DEV_MODE": "endpoints that reset, pause and inspect the engine"}
    if not server.api_key_env:
        opened["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "an endpoint that loads adapters from any path"
        is_command = ctx.profile.file == COMMAND
        key = "export `VLLM_API_KEY`" if is_command else "name a variable in `server.api_key_env`"
        text = f"the server listens on `{server.host}` without an API key"
        note = "a key guards /v1 and the like; /metrics, /health and /invocations stay open"
        help_ = f"{key}, or listen on 127.0.0.1 behind a proxy"
        yield Violation("server.host", text, notes=(note,), help=help_)
    for name, what in opened.items():
        if ctx.profile.env.get(name, "0").strip().lower() not in ("", "0", "false"):
            text = f"`{name}` opens {what} to the network"
            help_ = "leave it out, or listen on 127.0.0.1"
            related = {"server.host": "the server listens here"}
            yield Violation(f"env.{name}", text, related=related, help=help_, severity=WARNING)


@rule("SD146", WARNING)
def hidden_acceptance(ctx: Context) -> Violations:
    """Speculation runs without the counters that show whether it helps."""
    if ctx.engine.get("disable_log_stats") is True and ctx.variants:
        text = "the server will not report how many draft tokens are accepted"
        help_ = "leave `disable_log_stats` out"
        yield Violation("engine.disable_log_stats", text, help=help_)


@rule("SD148", ERROR, needs="models", in_lint=True)
def default_min_p(ctx: Context) -> Violations:
    """Every request gets a `min_p`, which vLLM refuses while it speculates."""
    own = section(ctx.engine, "override_generation_config")
    path, value, label = "engine.override_generation_config.min_p", own.get("min_p"), ""
    if "min_p" not in own and ctx.engine.get("generation_config", "auto") == "auto" and ctx.target:
        path, label = "target.model", "set in its generation_config.json"
        value = (ctx.target.generation_config or {}).get("min_p")
    if isinstance(value, bool) or not ctx.variants:
        return
    if isinstance(value, int | float) and value > _EPSILON:
        yield Violation(
            path,
            f"requests get `min_p` {value:g} by default, and vLLM refuses `min_p` with speculation",
            label=label,
            related={ctx.variants[0].at("method"): f"`{ctx.variants[0].method}` speculates"},
            help="write `engine: {override_generation_config: {min_p: 0.0}}`, and use `top_p`",
        )
