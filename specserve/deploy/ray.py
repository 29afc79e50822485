"""Ray Serve LLM: an application's configuration for `serve deploy`. Knows no cluster."""

from __future__ import annotations

import re
from typing import Any

from specserve.deploy.deployment import MODELS, Artifact, Deployment
from specserve.errors import UsageError
from specserve.plan.launchplan import FromEnv
from specserve.profile.writer import Commented, yaml_text
from specserve.vllm.arguments import jsonable
from specserve.vllm.facts import RAY_PIN

_VERSION = f"Its nodes need ray[serve,llm] and this vLLM; {RAY_PIN}."
_OWN = frozenset({"model", "nnodes", "node_rank", "master_addr", "master_port"})


def ray(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """The configuration. Ray spreads the ranks over its nodes itself.

    Raises UsageError for a variable that Ray would not pass on as it is.
    """
    server = made.profile.server
    config: dict[str, Any] = {
        "model_loading_config": {
            "model_id": server.served_model_name or made.plan.model,
            "model_source": _source(made),
        },
        "engine_kwargs": _engine(made),
        "deployment_config": {
            "autoscaling_config": Commented(
                "replicas; Ray adds one where requests wait", {"min_replicas": 1, "max_replicas": 1}
            ),
            "graceful_shutdown_timeout_s": made.grace_s,
            "health_check_timeout_s": 30,
        },
    }
    if made.is_cpu:
        config["accelerator_config"] = {"kind": "cpu"}
    variables = {name: value for name, value in made.plan.env.items() if isinstance(value, str)}
    for name, value in variables.items():
        if re.search(r"\$[\w{]", value):  # ray/_private/utils.py, `update_envs`
            raise UsageError(
                f"{made.profile.span(f'env.{name}')}: Ray would replace `$…` in `{name}`",
                hint="leave the variable out, and set it on the nodes",
            )
    if variables:
        config["runtime_env"] = {"env_vars": variables}
    content = {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": made.plan.port},  # noqa: S104
        "applications": [
            {
                "name": made.name,
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {"llm_configs": [config]},
            }
        ],
    }
    return (Artifact("serve.yaml", yaml_text(content, head=_head(made))),)


def _engine(made: Deployment) -> dict[str, Any]:
    kwargs = {key: value for key, value in made.plan.engine_kwargs.items() if key not in _OWN}
    kwargs |= {
        key: jsonable(value) for key, value in made.profile.frontend.items() if value is not None
    }
    kwargs["distributed_executor_backend"] = "ray"
    return {key: _inside(value) for key, value in kwargs.items()}


def _inside(value: Any) -> Any:
    """The value with MODELS in the place of the dot: a Ray actor works in a folder of its own."""
    if isinstance(value, dict):
        return {key: _inside(item) for key, item in value.items()}
    return f"{MODELS}/{value[2:]}" if isinstance(value, str) and value.startswith("./") else value


def _source(made: Deployment) -> Any:
    source = _inside(made.profile.target.model)
    return (
        Commented(f"{MODELS} of every node must hold {made.mounted}", source)
        if made.mounts
        else source
    )


def _head(made: Deployment) -> str:
    lines = [made.head, "", "On a Ray cluster that runs: serve deploy serve.yaml", _VERSION]
    if made.downloads:
        lines.append(
            "Each node downloads the models; its environment has HF_TOKEN, if they are gated."
        )
    if any(isinstance(value, FromEnv) for value in made.plan.env.values()):
        lines.append("Ray's ingress takes no API key: keep it behind a proxy that does.")
    return "\n".join(lines)
