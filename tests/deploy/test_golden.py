"""What is rendered, byte for byte: the same profile gives the same files, on every machine and every time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.deploy.deployment import Deployment
from specserve.deploy.targets import TARGETS
from tests.deploy.conftest import ROOT, files_of, made_of

CONFIGS = ROOT / "configs"
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
    eagle3 = made_of(CONFIGS / "llama33-70b-eagle3.yaml", *settings)
    made = {"llama": llama, "eagle3": eagle3}[server]
    golden(f"deploy/{server}/{target}/{Path(path).name}", files_of(target, made)[path])


@pytest.mark.parametrize("target", sorted(TARGETS.keys() - {"sglang"}))  # which does not serve on a CPU
def test_another_checkout_gives_the_same_bytes(target: str, tmp_path: Path) -> None:
    text = (CONFIGS / "demo.yaml").read_text()
    rendered = []
    for folder in (tmp_path / "one", tmp_path / "two" / "deeper"):
        (folder / "configs").mkdir(parents=True)
        (folder / "configs" / "demo.yaml").write_text(text)
        made = made_of(folder / "configs" / "demo.yaml")
        rendered.append(files_of(target, made, folder=folder / "deploy"))
    assert rendered[0] == rendered[1]
    assert str(tmp_path) not in "".join(rendered[0].values())
