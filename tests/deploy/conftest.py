"""Deployments of the shipped profiles, and of profiles from a few lines; the vendored schemas as validators."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from specserve.deploy.deployment import Canary, Deployment, deployment
from specserve.deploy.targets import render
from specserve.profile.load import load_profile, with_alternative

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "configs" / "llama70b-8b.yaml"
PROFILES = sorted(file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_"))


def made_of(
    file: Path, *settings: str, image: str | None = None, alternative: str | None = None
) -> Deployment:
    """The deployment of a profile file by one version's shipped table."""
    profile = with_alternative(load_profile(str(file), settings=settings), alternative)
    cpu = profile.hardware is not None and profile.hardware.accelerator == "cpu"
    return deployment(profile, version="0.33", platform="cpu" if cpu else "cuda", image=image)


def files_of(target: str, made: Deployment, *, folder: Path = ROOT / "deploy" / "x") -> dict[str, str]:
    """The rendered files by path."""
    return {one.path: one.text for one in render(target, made, folder=str(folder))}


def objects_of(made: Deployment) -> dict[str, Any]:
    """The objects that reach an API server, by `folder/Kind/name`."""
    found = {}
    files = files_of("kubernetes", made)
    for path, text in files.items():
        if "kustomization" in path:
            continue
        for document in yaml.safe_load_all(text):
            folder = path.rpartition("/")[0]
            name = document["metadata"]["name"]
            found["/".join(filter(None, (folder, document["kind"], name)))] = document
    return found


@pytest.fixture
def demo() -> Deployment:
    """The demo on the CPU: two folders of this repository, nothing of the Hub."""
    return made_of(ROOT / "configs" / "demo.yaml")


@pytest.fixture
def llama() -> Deployment:
    """A pair of the Hub on four GPUs, with a key."""
    return made_of(LLAMA, "server.api_key_env=LLAMA_KEY")


@pytest.fixture
def two_nodes() -> Deployment:
    """The same pair over two nodes."""
    return made_of(LLAMA, "hardware.nodes=2", "target.pipeline_parallel_size=2")


@pytest.fixture
def pools(tmp_path: Path) -> Deployment:
    """The same pair with a head as canary for 10 %."""
    settings = (
        "name=pools",
        "hardware.count=8",
        'alternatives.eagle={"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}',
    )
    canary = Canary("eagle", 10, made_of(LLAMA, *settings, alternative="eagle"))
    return replace(made_of(LLAMA, *settings), canary=canary)


SCHEMAS = Path(__file__).parent / "schemas"
_FILES = {
    "monitoring.coreos.com": "prometheus-operator",
    "gateway.networking.k8s.io": "gateway-api",
    "argoproj.io": "argo-rollouts",
}
_POD_TEMPLATES = ("leaderTemplate", "workerTemplate")


@lru_cache
def _schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
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
