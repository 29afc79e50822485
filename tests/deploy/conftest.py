"""Deployments of the shipped profiles, and of profiles from a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.deploy.deployment import Canary, Deployment, deployment
from specserve.deploy.targets import render
from specserve.profile.load import load_profile, with_alternative

ROOT = Path(__file__).parents[2]
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


def objects_of(files: Mapping[str, str]) -> dict[str, Any]:
    """The Kubernetes objects of all files, by `folder/Kind/name`."""
    found = {}
    for path, text in files.items():
        for document in yaml.safe_load_all(text):
            folder = path.rpartition("/")[0]
            name = document.get("metadata", {}).get("name", "")
            found["/".join(filter(None, (folder, document["kind"], name)))] = document
    return found


@pytest.fixture
def demo() -> Deployment:
    """The demo on the CPU: two folders of this repository, nothing of the Hub."""
    return made_of(ROOT / "configs" / "demo.yaml")


@pytest.fixture
def llama() -> Deployment:
    """A pair of the Hub on four GPUs, with a key."""
    return made_of(ROOT / "configs" / "llama70b-8b.yaml", "server.api_key_env=LLAMA_KEY")


@pytest.fixture
def two_nodes() -> Deployment:
    """The same pair over two nodes."""
    return made_of(
        ROOT / "configs" / "llama70b-8b.yaml", "hardware.nodes=2", "target.pipeline_parallel_size=2"
    )


@pytest.fixture
def pools(tmp_path: Path) -> Deployment:
    """The same pair with a head as canary for 10 %."""
    settings = (
        "name=pools",
        "hardware.count=8",
        'alternatives.eagle={"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}',
    )
    file = ROOT / "configs" / "llama70b-8b.yaml"
    canary = Canary("eagle", 10, made_of(file, *settings, alternative="eagle"))
    return replace(made_of(file, *settings), canary=canary)
