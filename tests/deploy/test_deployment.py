"""What all targets share: names, images, models, sizes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.deploy.deployment import dns_label, official, release
from specserve.deploy.targets import caveats
from specserve.errors import UsageError
from specserve.plan.uses import contained
from specserve.profile.load import load_profile
from specserve.profile.schema import fingerprint
from tests.deploy.conftest import ROOT, files_of, made_of

LLAMA = ROOT / "configs" / "llama70b-8b.yaml"


@given(st.text(max_size=60))
def test_every_name_becomes_one_that_a_service_may_have(name: str) -> None:
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", dns_label(name))


def test_a_good_name_stays() -> None:
    assert dns_label("llama70b-8b") == "llama70b-8b"
    assert dns_label("8b Llama_3.1") == "m-8b-llama-3-1"


@pytest.mark.parametrize(
    ("version", "number"),
    [("0.33", "0.33.0"), ("0.32.0+cpu", "0.32.0"), ("0.33.1", "0.33.1"), ("v0.33.0rc1", "0.33.0rc1")],
)
def test_the_image_is_that_of_the_version(version: str, number: str) -> None:
    assert release(version) == number
    assert official(version, platform="cuda").reference == f"vllm/vllm-openai:v{number}"
    assert official(version, platform="cpu").reference == f"vllm/vllm-openai-cpu:v{number}"


@pytest.mark.parametrize("text", ["", "a b", "image:tag; rm", "x@sha256:123", "Upper/case", "a\nb"])
def test_what_is_no_image_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a valid image reference"):
        official("0.33", platform="cuda", reference=text)


def test_an_image_of_ones_own_may_lie_in_any_registry() -> None:
    image = official("0.33", platform="cuda", reference="registry.example:5000/team/vllm:v0.33.0-patched")
    assert not image.is_pinned


def test_what_a_lock_says_goes_into_the_container_with_the_model() -> None:
    profile = load_profile(str(ROOT / "configs" / "demo.yaml"))
    paths = [profile.target.model, profile.speculation.model if profile.speculation else ""]
    identities: dict[tuple[str, str | None], str] = {
        (str(path), None): f"sha256:{number}" for number, path in enumerate(paths)
    }
    locked = replace(profile, identities=identities)
    assert fingerprint(contained(locked)[0]) == fingerprint(replace(locked, alternatives={}))


def test_only_what_is_read_counts_as_a_path() -> None:
    made = made_of(LLAMA, "frontend.root_path=/llm", "frontend.chat_template=/files/chat.jinja")
    assert [mount.name for mount in made.mounts] == ["chat.jinja"]
    assert "/llm" in made.plan.argv and "./chat.jinja" in made.plan.argv


def test_each_repository_is_downloaded_once_at_its_revision() -> None:
    made = made_of(
        LLAMA,
        "target.revision=abc",
        "speculation.model=meta-llama/Llama-3.1-70B-Instruct",
        "speculation.revision=abc",
    )
    assert [(one.step, one.revision) for one in made.downloads] == [("target", "abc")]
    made = made_of(LLAMA, "target.tokenizer=org/tokenizer")
    assert [(one.step, one.tokenizer_only) for one in made.downloads] == [
        ("target", False), ("tokenizer", True), ("draft", False),
    ]  # fmt: skip


def test_nodes_that_cannot_be_planned_are_refused() -> None:
    with pytest.raises(UsageError, match="4 ranks do not divide evenly into 3 nodes"):
        made_of(LLAMA, "hardware.nodes=3")
    with pytest.raises(UsageError, match=": specserve does not plan data parallelism across nodes"):
        made_of(LLAMA, "hardware.nodes=2", "engine.data_parallel_size=2")


def test_ray_needs_no_ranks_of_ours() -> None:
    assert made_of(LLAMA, "hardware.nodes=2", "engine.distributed_executor_backend=ray").ranks == ()


def test_places_of_the_profiles_host_to_write_to_are_left_out_and_told() -> None:
    written = ("env.HF_HOME=/data/hf", "env.NOTE=x", "engine.download_dir=/data/models")
    made = made_of(LLAMA, *written)
    for target in ("compose", "kubernetes", "systemd"):
        assert not any("/data/" in text for text in files_of(target, made).values())
    assert made.plan.fingerprint == fingerprint(load_profile(str(LLAMA), settings=written))
    (note,) = [line for line in caveats(made, "compose") if "left out" in line]
    assert "`env.HF_HOME`, `engine.download_dir`" in note


def test_adapters_are_mounted_where_the_launch_reads_them() -> None:
    made = made_of(LLAMA, "engine.enable_lora=true", 'frontend.lora_modules=["sql=/data/sql", "org=org/one"]')
    words = list(made.plan.argv)
    at = words.index("--lora-modules")
    assert words[at + 1 : at + 3] == ["sql=./sql", "org=org/one"]
    assert [(mount.name, mount.path) for mount in made.mounts] == [("sql", "/data/sql")]


@pytest.mark.parametrize("target", ["compose", "kubernetes", "systemd"])
@pytest.mark.parametrize(
    "more", [(), ("hardware.nodes=2", "engine.distributed_executor_backend=ray")], ids=["none", "ray"]
)
def test_no_node_gets_more_gpus_than_it_has(target: str, more: tuple[str, ...]) -> None:
    made = made_of(LLAMA, "target.tensor_parallel_size=16", "hardware.count=8", *more)
    with pytest.raises(UsageError, match="16 GPUs on one node") as caught:
        files_of(target, made)
    assert "hardware.nodes" in (caught.value.hint or "")
