"""`specserve render`: files for production, the same for the same profile, and a check that they are fresh."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from specserve.cli.commands import run
from specserve.errors import ProfileError, UsageError

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
LLAMA = str(ROOT / "configs" / "llama70b-8b.yaml")
DEMO = str(ROOT / "configs" / "demo.yaml")


def render(*arguments: str) -> int:
    return run(["render", *arguments])


def test_kubernetes_goes_to_stdout_ready_to_be_applied(capsys: Captured) -> None:
    assert render(LLAMA, "--to", "kubernetes") == 0
    written = capsys.readouterr()
    kinds = [document["kind"] for document in yaml.safe_load_all(written.out)]
    assert kinds == ["PersistentVolumeClaim", "Deployment", "Service", "NetworkPolicy"]
    assert "more files belong to it: `-o DIR` writes them all" in written.err


def test_several_files_that_need_each_other_want_a_folder() -> None:
    with pytest.raises(UsageError, match="makes several files") as caught:
        render(DEMO, "--to", "monitoring")
    assert "-o DIR" in (caught.value.hint or "")


def test_a_folder_is_written_and_then_up_to_date(tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "deploy"
    assert render(LLAMA, "--to", "kubernetes", "-o", str(folder)) == 0
    listed = capsys.readouterr().out.split()
    assert str(folder / "deployment.yaml") in listed and all(Path(path).is_file() for path in listed)
    assert render(LLAMA, "--to", "kubernetes", "-o", str(folder), "--check") == 0
    assert "up to date" in capsys.readouterr().err
    assert render(LLAMA, "--to", "kubernetes", "-o", str(folder)) == 0
    assert "none changed" in capsys.readouterr().err


def test_a_stale_folder_fails_in_ci_and_says_how_to_cure_it(tmp_path: Path, capsys: Captured) -> None:
    render(LLAMA, "--to", "systemd", "-o", str(tmp_path))
    capsys.readouterr()
    changed = [LLAMA, "--to", "systemd", "-o", str(tmp_path), "--set", "target.max_model_len=4096", "--check"]
    assert render(*changed) == 1
    written = capsys.readouterr()
    assert written.out == f"stale: {tmp_path / 'llama70b-8b.service'}\n"
    assert "hint: the same command without `--check` renders them" in written.err
    assert "--max-model-len 8192" in (tmp_path / "llama70b-8b.service").read_text()  # nothing is written
    (tmp_path / "llama70b-8b.service").unlink()
    assert render(*changed) == 1
    assert capsys.readouterr().out == f"missing: {tmp_path / 'llama70b-8b.service'}\n"


def test_a_profile_with_an_error_is_not_rendered(tmp_path: Path) -> None:
    bad = ["--set", "speculation.draft_tensor_parallel_size=3"]
    with pytest.raises(ProfileError):
        render(LLAMA, "--to", "ray", *bad)


def test_the_version_is_the_newest_that_the_profile_is_for(capsys: Captured) -> None:
    def image(*options: str) -> str:
        render(DEMO, "--to", "compose", *options)
        found: str = yaml.safe_load(capsys.readouterr().out)["services"]["vllm"]["image"]
        return found

    assert image() == "vllm/vllm-openai-cpu:v0.33.0"
    assert image("--set", "vllm=~=0.32.0") == "vllm/vllm-openai-cpu:v0.32.0"


def test_what_could_be_pinned_or_guarded_is_told(capsys: Captured) -> None:
    render(LLAMA, "--to", "kubernetes")
    told = capsys.readouterr().err
    for part in ("can move", "`specserve lock` pins the commits", "no API key"):
        assert part in told
    guarded = ["--set", "server.api_key_env=KEY", "--image", "vllm/vllm-openai:v0.33.0@sha256:" + "0" * 64]
    render(LLAMA, "--to", "kubernetes", *guarded)
    told = capsys.readouterr().err
    assert "can move" not in told and "no API key" not in told


@pytest.mark.parametrize("options", [["--check"], ["--image", "vllm/vllm-openai:v0.33.0"]])
def test_options_that_make_no_sense_are_refused(options: list[str]) -> None:
    with pytest.raises(UsageError):
        render(DEMO, "--to", "ray", *options)


def test_the_lock_gives_revisions_and_the_size_of_the_weights(tmp_path: Path, capsys: Captured) -> None:
    for name in ("target", "draft"):
        (tmp_path / name).symlink_to(ROOT / "demo" / name)
    text = (ROOT / "configs" / "demo.yaml").read_text().replace("../demo/wide", "./target")
    profile = tmp_path / "demo.yaml"
    profile.write_text(text.replace("../demo/draft", "./draft"))
    assert run(["lock", str(profile)]) == 0
    capsys.readouterr()
    render(str(profile), "--to", "systemd")
    assert "weights (by the lock)" in capsys.readouterr().out
    profile.with_name("demo.lock.json").unlink()
    render(str(profile), "--to", "systemd")
    assert "60 GB of weights (a guess: `specserve lock` records the real size)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pair", "machine"),
    [
        ("target: {model: meta-llama/Llama-3.1-70B-Instruct, tensor_parallel_size: 4}", "4xH100-80GB"),
        ("target: {model: openai/gpt-oss-20b, max_model_len: 4096}", "1xH100-80GB"),
    ],
)
def test_the_weights_of_the_files_are_those_of_check(
    pair: str, machine: str, tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(pair)
    assert render(str(file), "--to", "systemd") == 0
    (said,) = re.findall(r"to read (\S+) GB of weights \(by the published size", capsys.readouterr().out)
    assert run(["check", str(file), "--no-ask", "--offline", "--assume", machine, "--format", "json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["verdicts"][0]["memory"]["per_gpu_bytes"]
    assert float(said) * 1e9 == pytest.approx(int(machine[0]) * sizes["target_weights"], rel=0.05)


def test_files_for_the_cpu_say_that_sampled_text_is_corrupted(capsys: Captured) -> None:
    for target, alternative, says in (
        ("compose", (), True),
        ("compose", ("--alternative", "baseline"), False),
    ):
        assert run(["render", DEMO, "--to", target, *alternative]) == 0
        out, err = capsys.readouterr()
        assert ("vllm-project/vllm#55005" in out) is says
        assert ("warning: with speculation, vLLM's CPU build corrupts text" in err) is says
