"""SD1xx about what surrounds the engine: variables, secrets, the open port, code that comes with a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.checks.blocks import blocks
from specserve.checks.reach import is_open
from specserve.checks.rule import Context, Hit, rule
from specserve.checks.versions import judged
from specserve.diagnostics import Severity
from specserve.profile.problems import did_you_mean
from specserve.profile.schema import Profile
from specserve.profile.secrets import looks_secret, names_a_secret
from specserve.profile.texts import COMMAND
from specserve.vllm.versions import table

_HARMLESS = re.compile(
    r"|[./~$].*|true|false|yes|no|on|off|none|null|empty|dummy|[-+]?[0-9.]{1,9}[kKmMgG]?", re.I
)
"""Values that are no secret under any name: paths, references, switches, counts, placeholders."""
_MOVED = {
    "VLLM_ATTENTION_BACKEND": "write `attention_backend` under `engine`",
    "VLLM_FLASH_ATTN_VERSION": "write `attention_config: {flash_attn_version: …}` under `engine`",
    "VLLM_ALL2ALL_BACKEND": "write `all2all_backend` under `engine`",
    "VLLM_USE_V1": "leave it out: there is no other engine any more",
    "VLLM_HOST": "write `server.host`",
}
"""What became of variables that articles still name."""
_NOT_READ_BY_VLLM = frozenset({"VLLM_WHEEL_LOCATION"})  # vLLM's set-up reads it


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
    vllm/platforms/interface.py, `Unknown vLLM environment variable detected`
    """
    names = [name for name in ctx.profile.env if name.startswith("VLLM_") and name not in _NOT_READ_BY_VLLM]
    if not names:
        return
    strict = ctx.profile.engine.get("fail_on_environ_validation") is True
    known = {name for version in judged(ctx) for name in table(version).env}
    for name in names:
        if name not in known:
            guess = did_you_mean(name, known)
            text = _MOVED.get(name) or (f"did you mean `{guess}`?" if guess else "leave it out")
            yield Hit(
                f"env.{name}",
                f"vLLM knows no variable `{name}`",
                related=(("engine.fail_on_environ_validation", "vLLM will refuse to start"),)
                if strict
                else (),
                help=text,
                at_key=True,
                severity=Severity.ERROR if strict else None,
            )


@rule("SD107", "secret-in-profile", Severity.ERROR, policy=True)
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
        named = names_a_secret(name) and not _HARMLESS.fullmatch(value)
        if named or looks_secret(value):
            yield Hit(f"env.{name}", f"`{name}` looks like a secret", help=help_text)
    target = ctx.profile.target
    sections: dict[str, Any] = {
        "engine": ctx.profile.engine,
        "frontend": ctx.profile.frontend,
        "target": {name: getattr(target, name) for name in ("model", "revision", "tokenizer")},
        **{path: block.keys for path, block in blocks(ctx)},
    }
    for path, text in _texts(sections, ""):
        if looks_secret(text):
            yield Hit(path, f"`{path}` looks like a secret", help=help_text)


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


def _closed_by(profile: Profile) -> str:
    """What closes a port, in the words of whoever opened it."""
    key = "export `VLLM_API_KEY`" if profile.file == COMMAND else "name a variable in `server.api_key_env`"
    return f"{key}, or listen on 127.0.0.1 behind a proxy"


@rule("SD108", "open-bind", Severity.ERROR, policy=True)
def open_bind(ctx: Context) -> Iterator[Hit]:
    """The server listens on the network without a key.

    ## Why is this bad?
    Whoever reaches the port can use the model. Even with a key, vLLM guards its API's prefixes only:
    /metrics, /health and /invocations answer everybody. Encryption alone lets everybody in too; a certificate that
    each client must show (`ssl_cert_reqs: 2` with `ssl_ca_certs`) does not, nor does a Unix socket (`uds`).

    ## Example
        server: {host: 0.0.0.0}

    ## Use instead
        server:
          host: 0.0.0.0
          api_key_env: MY_SERVER_KEY  # specserve: ignore[SD159] a proxy passes /v1 alone

    ## Source
    vllm/entrypoints/serve/middleware/authenticate.py, `The request path doesn't start with GUARDED_PREFIX`
    """
    server = ctx.profile.server
    if is_open(ctx.profile) and not server.api_key_env:
        yield Hit(
            "server.host",
            f"the server listens on `{server.host}` without an API key",
            notes=("a key guards /v1 and its like; /metrics, /health and /invocations stay open",),
            help=_closed_by(ctx.profile),
        )
