"""What all targets share: names, models, places; and the files as they were reviewed, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.deploy.deployment import Deployment, contained, dns_label
from specserve.deploy.targets import TARGETS, caveats
from specserve.errors import UsageError
from specserve.profile.load import load_profile
from specserve.profile.schema import fingerprint
from tests.deploy.conftest import LLAMA, ROOT, files_of, made_of


@given(st.text(max_size=60))
def test_every_name_becomes_one_that_a_service_may_have(name: str) -> None:
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", dns_label(name))


def test_what_a_lock_says_goes_into_the_container_with_the_model() -> None:
    profile = load_profile(str(ROOT / "configs" / "demo.yaml"))
    paths = [profile.target.model, profile.speculation.model if profile.speculation else ""]
    identities = {str(path): f"sha256:{number}" for number, path in enumerate(paths)}
    locked = replace(profile, identities=identities)
    assert fingerprint(contained(locked)[0]) == fingerprint(replace(locked, alternatives={}))


def test_what_the_launch_reads_is_mounted_under_the_name_that_it_reads() -> None:
    adapters = 'frontend.lora_modules=["sql=/data/sql", "org=org/one"]'
    made = made_of(
        LLAMA,
        "target.model=/a/model",
        "speculation.model=/b/model",
        "frontend.root_path=/llm",
        "frontend.chat_template=/files/chat.jinja",
        "engine.enable_lora=true",
        adapters,
    )
    words = list(made.plan.argv)
    assert words[2] == "./model" and {"/llm", "./chat.jinja", "sql=./sql", "org=org/one"} <= {*words}
    assert set(made.mounts.items()) == {
        ("model", "/a/model"),
        ("model-2", "/b/model"),
        ("chat.jinja", "/files/chat.jinja"),
        ("sql", "/data/sql"),
    }


def test_each_repository_is_downloaded_once_and_whole() -> None:
    target, draft = (f"meta-llama/Llama-3.1-{size}-Instruct" for size in ("70B", "8B"))

    def staged(*settings: str) -> list[tuple[str, bool]]:
        return [(use.model, use.tokenizer_only) for use in made_of(LLAMA, *settings).downloads]

    assert staged(f"speculation.model={target}") == [(target, False)]
    assert staged("target.tokenizer=org/x") == [(target, False), (draft, False), ("org/x", True)]
    assert staged(f"target.tokenizer={draft}") == [(target, False), (draft, False)]
    revised = made_of(LLAMA, "target.revision=abc", f"speculation.model={target}").downloads
    assert [use.revision for use in revised] == ["abc", None]


def test_ray_needs_no_ranks_of_ours() -> None:
    assert made_of(LLAMA, "hardware.nodes=2", "engine.distributed_executor_backend=ray").ranks == ()


def test_accelerators_of_others_are_refused_with_a_way_out() -> None:
    with pytest.raises(UsageError, match=": specserve cannot write containers for"):
        made_of(LLAMA, "hardware.accelerator=MI300X-192GB")


def test_places_of_the_profiles_host_to_write_to_are_left_out_with_a_note() -> None:
    written = ("env.HF_HOME=/data/hf", "env.NOTE=x", "engine.download_dir=/data/models")
    made = made_of(LLAMA, *written)
    for target in ("compose", "kubernetes", "systemd"):
        assert not any("/data/" in text for text in files_of(target, made).values())
    assert made.plan.fingerprint == fingerprint(load_profile(str(LLAMA), settings=written))
    (note,) = [line for line in caveats(made, "compose") if "left out" in line]
    assert "`env.HF_HOME`, `engine.download_dir`" in note


@pytest.mark.parametrize("target", ["compose", "kubernetes", "systemd", "ray", "sglang"])
def test_a_profile_that_is_offline_downloads_nothing_and_finds_the_cache_that_was_pulled(target: str) -> None:
    offline = ("env.HF_HUB_OFFLINE=1", "env.HF_HOME=/data/hf")
    made = made_of(LLAMA, *offline)
    assert made.downloads == () and made.mounts == {"hub": "/data/hf/hub"}
    assert made.plan.fingerprint == fingerprint(load_profile(str(LLAMA), settings=offline))
    (text,) = [text for path, text in files_of(target, made).items() if "HF_HUB_CACHE" in text]
    assert "/models/hub" in text if target == "ray" else "./hub" in text
    assert "hf download" not in text and "hf\n" not in text and "HF_TOKEN" not in text
    assert "HF_HUB_OFFLINE" in text and ("/data/hf/hub" if target == "compose" else "`hub`") in text


CASES = [
    ("llama", "compose", "compose.yaml"),
    ("llama", "kubernetes", "deployment.yaml"),
    ("llama", "ray", "serve.yaml"),
    ("llama", "systemd", "llama70b-8b.service"),
    ("eagle3", "sglang", "launch.sh"),
]


@pytest.mark.parametrize(("server", "target", "path"), CASES, ids=lambda part: part.replace("/", "-"))
def test_the_file_is_what_was_reviewed(
    server: str,
    target: str,
    path: str,
    llama: Deployment,
    golden: Callable[[str, str], None],
) -> None:
    settings = ("engine.enforce_eager=true", "env.NCCL_DEBUG=WARN")
    eagle3 = made_of(ROOT / "configs" / "llama33-70b-eagle3.yaml", *settings)
    made = {"llama": llama, "eagle3": eagle3}[server]
    golden(f"deploy/{server}/{target}/{Path(path).name}", files_of(target, made)[path])


@pytest.mark.parametrize("target", sorted(TARGETS.keys() - {"sglang"}))  # which does not serve on a CPU
def test_another_checkout_gives_the_same_bytes(target: str, tmp_path: Path) -> None:
    text = (ROOT / "configs" / "demo.yaml").read_text()
    rendered = []
    for folder in (tmp_path / "one", tmp_path / "two" / "deeper"):
        (folder / "configs").mkdir(parents=True)
        (folder / "configs" / "demo.yaml").write_text(text)
        made = made_of(folder / "configs" / "demo.yaml")
        rendered.append(files_of(target, made, folder=folder / "deploy"))
    assert rendered[0] == rendered[1]
    assert str(tmp_path) not in "".join(rendered[0].values())
