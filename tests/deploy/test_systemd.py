"""systemd: units that say what `up` would start, wait for the answer and may touch little."""

from __future__ import annotations

from dataclasses import replace

from specserve.deploy.deployment import Deployment
from tests.deploy.conftest import ROOT, files_of, made_of

LLAMA = ROOT / "configs" / "llama70b-8b.yaml"


def lines_of(made: Deployment) -> list[str]:
    (text,) = files_of("systemd", made).values()
    return text.splitlines()


def value_of(lines: list[str], key: str) -> str:
    return next(line for line in lines if line.startswith(f"{key}=")).partition("=")[2]


def test_a_start_ends_when_it_answers_or_when_it_died(llama: Deployment) -> None:
    after = value_of(lines_of(replace(llama, host="0.0.0.0")), "ExecStartPost")
    assert "http://127.0.0.1:8000/health" in after
    assert "kill -0 $$MAINPID" in after and after.endswith('exit 1"')


def test_it_finds_compilers_and_caches_and_may_touch_little(llama: Deployment, demo: Deployment) -> None:
    lines = lines_of(llama)
    assert any(line.startswith("Environment=PATH=/opt/vllm/bin:/usr/local/cuda/bin:") for line in lines)
    for line in (
        "CacheDirectory=llama70b-8b",
        "Environment=HOME=%C/llama70b-8b",
        "DynamicUser=yes",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
    ):
        assert line in lines
    assert "PrivateDevices=yes" not in lines  # the GPUs are devices
    assert "PrivateDevices=yes" in lines_of(demo)


def test_secrets_lie_in_a_file_of_roots(llama: Deployment) -> None:
    lines = lines_of(llama)
    assert "EnvironmentFile=/etc/specserve/llama70b-8b.env" in lines
    assert not any(line.startswith("Environment=VLLM_API_KEY") for line in lines)
    without = lines_of(made_of(LLAMA, "hardware.devices=[4,5,6,7]"))
    assert "EnvironmentFile=-/etc/specserve/llama70b-8b.env" in without  # a token may be there
    assert "Environment=CUDA_VISIBLE_DEVICES=4,5,6,7" in without


def test_each_node_has_a_unit_and_learns_where_the_first_is(two_nodes: Deployment) -> None:
    files = files_of("systemd", two_nodes)
    assert sorted(files) == ["llama70b-8b-node0.service", "llama70b-8b-node1.service"]
    first, second = (text.splitlines() for text in files.values())
    assert value_of(second, "ExecStart").endswith(
        "--master-addr ${MASTER_ADDR} --master-port 29501 --headless"
    )
    assert any(line.startswith("ExecStartPost=") for line in first)
    assert not any(line.startswith("ExecStartPost=") for line in second)  # it answers nobody


def test_folders_of_the_profile_are_looked_for_in_one_place(demo: Deployment) -> None:
    lines = lines_of(demo)
    assert "WorkingDirectory=/srv/models" in lines
    assert any("/srv/models must hold `wide`, `draft`" in line for line in lines)
