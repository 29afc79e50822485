"""`specserve pull`: what vLLM reads and nothing else, at the locked commit, and an offline start finds it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub_server import HubServer

from specserve.cli.app import _run
from specserve.models.hub import hub_cache, read_model
from specserve.plan.locking import lock_of, offline_problems
from specserve.profile.load import load_profile
from tests.models.tiny import safetensors, write_model

Captured = pytest.CaptureFixture[str]
TEXT = """
target: {model: org/target}
speculation: {method: draft_model, model: org/draft, num_speculative_tokens: 3}
alternatives:
  head: {method: eagle3, model: org/head, num_speculative_tokens: 3}
"""
EXTRA = {
    "pytorch_model.bin": b"bin",
    "model.Q4.gguf": b"gguf",
    "consolidated.00.pth": b"pth",
    "README.md": b"# model",
    "chat_template.jinja": b"{{ x }}",
    "picture.png": b"png",
    "mask_embedding.pt": b"pt",
    "preprocessor_config.json": b"{}",
    "tokenizer.model.v3": b"model",
}
OPENED = {
    *("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "chat_template.jinja"),
    *("mask_embedding.pt", "preprocessor_config.json", "tokenizer.model.v3"),
}


@pytest.fixture
def hub(empty_hub: HubServer, tmp_path: Path) -> HubServer:
    for name, commit in (("target", "a"), ("draft", "b"), ("head", "c")):
        folder = write_model(tmp_path / "hub" / name, files=EXTRA)
        (folder / "onnx").mkdir()
        (folder / "onnx" / "model.onnx").write_bytes(b"onnx")
        (folder / "original").mkdir()
        (folder / "original" / "model.safetensors").write_bytes(safetensors())
        empty_hub.add(f"org/{name}", folder, commit=commit * 40)
    return empty_hub


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "configs" / "p.yaml"
    file.parent.mkdir()
    file.write_text(TEXT)
    return file


def pull(*arguments: object) -> int:
    return _run(["pull", *map(str, arguments)])


def snapshot(name: str, commit: str) -> Path:
    return hub_cache() / f"models--org--{name}" / "snapshots" / (commit * 40)


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_target_and_draft_are_fetched_without_what_vllm_does_not_read(
    hub: HubServer, file: Path, capsys: Captured
) -> None:
    assert pull(file) == 0
    assert names(snapshot("target", "a")) == names(snapshot("draft", "b")) == OPENED
    assert not snapshot("head", "c").exists()
    stdout, stderr = capsys.readouterr()
    assert stdout.splitlines() == [str(snapshot("target", "a")), str(snapshot("draft", "b"))]
    # small files were read before, to know the model
    assert "downloading org/target at aaaaaaaaaaaa: 2 files, 0 MB" in stderr


def test_another_repository_brings_what_is_read_of_it_and_code_brings_all_it_may_open(
    hub: HubServer, file: Path, tmp_path: Path
) -> None:
    with_code = write_model(
        tmp_path / "hub" / "code", files={**EXTRA, "modeling_x.py": b"", "mel.npz": b"npz"}
    )
    hub.add("org/target", with_code, commit="a" * 40)
    file.write_text(
        "target: {model: org/target, tokenizer: org/draft}\nengine: {generation_config: org/head}\n"
    )
    assert pull(file) == 0
    assert names(snapshot("draft", "b")) == names(snapshot("head", "c")) == OPENED - {"model.safetensors"}
    assert names(snapshot("target", "a")) == OPENED | {"modeling_x.py", "mel.npz", "README.md", "picture.png"}
    file.write_text(TEXT.replace("org/target}", "org/target, tokenizer: org/draft}"))
    assert pull(file) == 0 and names(snapshot("draft", "b")) == OPENED


@pytest.mark.parametrize("more", ["", "env: {HF_HOME: ./elsewhere}\n", "lock"])
def test_what_was_pulled_is_checked_offline_with_nothing_skipped(
    more: str, hub: HubServer, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text(TEXT.partition("alternatives")[0] + more.removeprefix("lock"))
    assert not more.startswith("lock") or _run(["lock", str(file)]) == 0
    assert pull(file) == 0
    capsys.readouterr()
    hub.requests.clear()
    command = ["check", str(file), "--offline", "--no-ask", "--assume", "L40S-48GB", "--format", "json"]
    assert _run(command) in (0, 1) and hub.requests == []  # the models of this test are no real ones
    found = json.loads(capsys.readouterr().out)
    assert found["skipped"] == [] and found["verdicts"][0]["memory"]


def test_an_alternative(hub: HubServer, file: Path) -> None:
    assert pull(file, "--alternative", "head") == 0
    assert snapshot("head", "c").exists() and not snapshot("draft", "b").exists()


def test_a_pull_that_was_cut_off_goes_on_and_a_complete_one_downloads_nothing(
    hub: HubServer, file: Path, capsys: Captured
) -> None:
    assert pull(file) == 0
    (snapshot("target", "a") / "model.safetensors").unlink()
    for files, said in (({"model.safetensors"}, True), (set[str](), False)):
        hub.requests.clear()
        capsys.readouterr()
        assert pull(file) == 0
        whole = {each.path.rpartition("/")[2] for each in hub.sent("/resolve/") if not each.range}
        assert whole <= files
        assert ("downloading org/target at aaaaaaaaaaaa: 1 file," in capsys.readouterr().err) is said


def test_with_lock_and_pull_a_launch_needs_no_hub(hub: HubServer, file: Path) -> None:
    assert _run(["lock", str(file)]) == 0
    profile = load_profile(file)
    known = lock_of(profile)
    assert known and offline_problems(profile, known)
    assert pull(file) == 0
    assert offline_problems(profile, known) == []


def test_a_draft_whose_tokenizer_vllm_asks_for_by_branch_is_found_by_it(hub: HubServer, file: Path) -> None:
    file.write_text(
        TEXT.replace(
            "num_speculative_tokens: 3}", "num_speculative_tokens: 3, use_heterogeneous_vocab: true}", 1
        )
    )
    assert _run(["lock", str(file)]) == 0
    assert pull(file) == 0
    assert (snapshot("draft", "b").parents[1] / "refs" / "main").read_text() == "b" * 40
    assert not (snapshot("target", "a").parents[1] / "refs" / "main").exists()
    known = lock_of(load_profile(file))
    assert known and offline_problems(load_profile(file), known) == []


def test_the_hub_library_takes_the_snapshot_for_complete_when_it_is_offline(
    hub: HubServer, file: Path
) -> None:
    """As vLLM asks for a draft's weights; a listing with files that were left out forbids it."""
    assert pull(file) == 0
    code = (
        "from huggingface_hub import snapshot_download; print(snapshot_download("
        f"'org/draft', revision='{'b' * 40}', allow_patterns='*.safetensors', local_files_only=True))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.stdout.strip() == str(snapshot("draft", "b")), done.stderr


def test_shards_are_those_of_the_index(hub: HubServer, file: Path, tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors"}}).encode()
    files = {
        "model.safetensors.index.json": index,
        "model-1.safetensors": safetensors(),
        "x.safetensors": b"x",
    }
    hub.add(
        "org/target", write_model(tmp_path / "hub" / "sharded", tensors=None, files=files), commit="a" * 40
    )
    file.write_text("target: {model: org/target}\n")
    assert pull(file) == 0
    assert {name for name in names(snapshot("target", "a")) if name.endswith("safetensors")} == {
        "model-1.safetensors"
    }


def test_a_disk_that_is_too_small_is_said_before_anything_is_fetched(
    hub: HubServer, file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.models.hub.MARGIN_BYTES", 1 << 60)
    assert pull(file) == 2
    assert "GB must be downloaded, but the disk of `" in capsys.readouterr().err
    assert not (snapshot("target", "a") / "model.safetensors").exists()


def test_a_profiles_own_cache_is_where_it_goes(hub: HubServer, file: Path, tmp_path: Path) -> None:
    file.write_text(f"target: {{model: org/target}}\nenv: {{HF_HOME: {tmp_path / 'other'}}}\n")
    assert pull(file) == 0
    assert (tmp_path / "other" / "hub" / "models--org--target").exists()


def test_a_directory_has_nothing_to_pull(hub: HubServer, file: Path, capsys: Captured) -> None:
    write_model(file.parent / "m")
    file.write_text("target: {model: ./m}\n")
    assert pull(file) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and hub.requests == []
    assert captured.err == "nothing to download: every model of `p` is a local directory\n"
    file.write_text("target: {model: ./nothing}\n")
    assert pull(file) == 2


def test_a_download_that_fails_says_that_it_can_go_on(hub: HubServer, file: Path, capsys: Captured) -> None:
    read_model("org/target")  # its facts are known, so that the download itself meets the fault
    hub.repositories["org/target"].fault, hub.repositories["org/target"].on = "reset", "/resolve/"
    file.write_text("target: {model: org/target}\n")
    assert pull(file) == 2
    assert "run it again: it continues where it stopped" in capsys.readouterr().err


def test_ctrl_c_ends_it_while_the_hub_is_silent(hub: HubServer, file: Path) -> None:
    hub.repositories["org/target"].fault, hub.repositories["org/target"].on = "stall", "/resolve/"
    env = {**os.environ, "HF_HUB_ETAG_TIMEOUT": "600", "HF_HUB_DOWNLOAD_TIMEOUT": "600"}
    command = [sys.executable, "-m", "specserve", "pull", str(file)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        while not hub.sent("/resolve/"):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=45)
    assert process.returncode == 130 and error.endswith(b"interrupted\n")


def test_offline_nothing_is_pulled(
    hub: HubServer, file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pull(file) == 2
    error = capsys.readouterr().err
    assert "HF_HUB_OFFLINE is set" in error and "hint: unset HF_HUB_OFFLINE" in error
    assert hub.requests == []
