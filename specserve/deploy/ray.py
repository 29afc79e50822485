"""Ray Serve LLM: an application's configuration for `serve deploy`. Knows no cluster."""

from __future__ import annotations

import re
from typing import Any

from specserve.deploy.deployment import MODELS, Artifact, Deployment
from specserve.errors import UsageError
from specserve.profile.writer import Commented, yaml_text
from specserve.vllm.arguments import jsonable
from specserve.vllm.facts import RAY_PIN

_PER_NODE = frozenset({"model", "nnodes", "node_rank", "master_addr", "master_port"})
"""What Ray gets elsewhere, or decides itself."""


def ray(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Return serve.yaml. Ray spreads the ranks over its nodes itself.

    Raises UsageError for a variable that Ray would not pass on as it is.
    """
    for name, value in made.variables.items():
        if re.search(r"\$[\w{]", value):  # ray/_private/utils.py, `update_envs`
            raise UsageError(
                f"{made.profile.span(f'env.{name}')}: Ray would replace `$…` in `{name}`",
                hint="leave the variable out, and set it on the nodes",
            )
    kwargs = {key: value for key, value in made.plan.engine_kwargs.items() if key not in _PER_NODE}
    for key, value in made.profile.frontend.items():
        if value is not None:
            kwargs[key] = jsonable(value)
    kwargs = _mounted(kwargs) | {"distributed_executor_backend": "ray"}
    alone = {"min_replicas": 1, "max_replicas": 1}
    config: dict[str, Any] = {
        "model_loading_config": {
            "model_id": made.plan.model,
            "model_source": _mounted(made.profile.target.model),
        },
        "engine_kwargs": kwargs,
        "deployment_config": {
            "autoscaling_config": Commented("Ray adds replicas where requests wait", alone),
            "graceful_shutdown_timeout_s": made.grace_s,
        },
    }
    if made.is_cpu:
        config["accelerator_config"] = {"kind": "cpu"}
    if made.variables:
        config["runtime_env"] = {"env_vars": _mounted(made.variables)}
    application = {
        "name": made.name,
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [config]},
    }
    content = {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": made.plan.port},  # noqa: S104
        "applications": [application],
    }
    lines = [made.head, "", "On a Ray cluster that runs: serve deploy serve.yaml"]
    lines.append(f"Its nodes need ray[serve,llm] and this vLLM; {RAY_PIN}.")
    if made.mounts:
        lines.append(f"{MODELS} of every node must hold {made.mounted}.")
    if made.downloads:
        lines.append(
            "Each node downloads the models; for gated ones, its environment has HF_TOKEN."
        )
    if made.secrets:
        lines.append("Ray's ingress takes no API key: keep it behind a proxy that does.")
    return (Artifact("serve.yaml", yaml_text(content, head="\n".join(lines))),)


def _mounted(value: Any) -> Any:
    """The value with MODELS in the place of the dot: a Ray actor works in a folder of its own."""
    if isinstance(value, dict):
        return {key: _mounted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mounted(item) for item in value]
    return re.sub(r"^([^/=]*=)?\./", rf"\1{MODELS}/", value) if isinstance(value, str) else value
