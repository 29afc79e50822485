"""The rendered compose service's command, as it stands in the file, in a plain process: it serves the demo."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml

from specserve.hardware.host import free_port
from specserve.serve.requests import is_healthy
from tests.engine.conftest import ROOT, START_LIMIT_S

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
    program = [str(Path(sys.executable).with_name("vllm")), *service["entrypoint"][1:]]
    log = (tmp_path / "log").open("wb")
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    with (
        log,
        subprocess.Popen(
            [*program, *service["command"]],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        ) as process,
    ):
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not is_healthy(f"http://127.0.0.1:{port}"):
                assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
                assert time.monotonic() < deadline
                time.sleep(0.5)
            body = {"model": "demo", "prompt": "def __len__(self):", "max_tokens": 24, "temperature": 0}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert "return" in json.load(answer)["choices"][0]["text"]
        finally:
            members = [
                process.pid,
                *(child.pid for child in psutil.Process(process.pid).children(recursive=True)),
            ]
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
