"""The rendered compose service's command, as it stands in the file, in a plain process: it serves the demo."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from specserve.hardware.host import free_port
from tests.engine.conftest import ROOT, plain_vllm

pytestmark = [pytest.mark.engine, pytest.mark.soak]


def test_the_command_of_the_compose_file_serves_the_demo(tmp_path: Path) -> None:
    port = free_port()
    rendered = subprocess.run(
        [sys.executable, "-m", "specserve", "render", str(ROOT / "configs" / "demo.yaml"), "--to", "compose",
         "--vllm", "0.32", "--set", f"server.port={port}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    service = yaml.safe_load(rendered.stdout)["services"]["vllm"]
    mounts = [volume for volume in service["volumes"] if isinstance(volume, dict)]
    for mount in mounts:  # what the container finds in its working folder
        (tmp_path / Path(mount["target"]).name).symlink_to((ROOT / "configs" / mount["source"]).resolve())
    body = {"model": "demo", "prompt": "def __len__(self):", "max_tokens": 24, "temperature": 0}
    with plain_vllm(*service["entrypoint"][1:], *service["command"], port=port, folder=tmp_path) as url:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert "return" in json.load(answer)["choices"][0]["text"]
