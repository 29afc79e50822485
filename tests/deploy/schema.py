"""The vendored schemas as validators."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parent / "schemas"
_FILES = {
    "monitoring.coreos.com": "prometheus-operator",
    "gateway.networking.k8s.io": "gateway-api",
    "argoproj.io": "argo-rollouts",
}
_POD_TEMPLATES = ("leaderTemplate", "workerTemplate")


@lru_cache
def _schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def _validator(file: str, kind: str) -> Draft202012Validator:
    content = _schema(file)
    return Draft202012Validator({**content["kinds"][kind], "$defs": content["$defs"]})


def kubernetes_problems(document: dict[str, Any]) -> list[str]:
    """What an API server would refuse of one object."""
    kind = document["kind"]
    if kind == "LeaderWorkerSet":
        template = document["spec"]["leaderWorkerTemplate"]
        pods = _validator("kubernetes", "PodTemplateSpec")
        found = list(Draft202012Validator(_schema("leaderworkerset")).iter_errors(document))
        found += [error for name in _POD_TEMPLATES for error in pods.iter_errors(template[name])]
    else:
        group = document["apiVersion"].partition("/")[0]
        found = list(_validator(_FILES.get(group, "kubernetes"), kind).iter_errors(document))
    return [f"{error.json_path}: {error.message}" for error in found]


def compose_problems(document: dict[str, Any]) -> list[str]:
    """What docker compose would refuse of a file."""
    found = Draft202012Validator(_schema("compose-spec")).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]
