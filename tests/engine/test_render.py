"""Rendered files started for real, without their daemons: the command, variables and folder that stand in the file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from specserve.hardware.host import free_port
from tests.deploy.test_hostile import compose_text, kubernetes_text, systemd_words
from tests.engine.server import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.soak]
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Start:
    """What a daemon would start: `wait` returns 0 when the server answers."""

    argv: list[str]
    env: dict[str, str]
    folder: str
    wait: list[str]


def of_compose(text: str) -> Start:
    service = compose_text(yaml.safe_load(text)["services"]["vllm"])
    argv = [*service["entrypoint"], *service["command"]]
    wait = ["sh", "-c", f"until {' '.join(service['healthcheck']['test'][1:])}; do sleep 1; done"]
    return Start(argv, service["environment"], service["working_dir"], wait)


def of_kubernetes(text: str) -> Start:
    documents = {document["kind"]: document for document in yaml.safe_load_all(text)}
    (server,) = documents["Deployment"]["spec"]["template"]["spec"]["containers"]
    argv = [kubernetes_text(word) for word in server["command"] + server["args"]]
    env = {one["name"]: kubernetes_text(one["value"]) for one in server["env"]}
    url = f"http://127.0.0.1:{server['ports'][0]['containerPort']}{server['startupProbe']['httpGet']['path']}"
    wait = ["sh", "-c", f"until curl -fs {url}; do sleep 1; done"]
    return Start(argv, env, server["workingDir"], wait)


def of_systemd(text: str) -> Start:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        found.setdefault(line.partition("=")[0], []).append(line.partition("=")[2])
    lines = [systemd_words(line, variables=None) for line in found["Environment"]]
    env = dict(word.partition("=")[::2] for (word,) in lines)
    argv, wait = (systemd_words(found[key][0], variables={}) for key in ("ExecStart", "ExecStartPost"))
    return Start(argv, env, found["WorkingDirectory"][0], wait)


@pytest.mark.parametrize("read", [of_compose, of_kubernetes, of_systemd], ids=lambda read: read.__name__[3:])
def test_what_stands_in_the_file_serves_the_demo(read: Any, tmp_path: Path) -> None:
    target, port = read.__name__[3:], free_port()
    settings = ("--set", "vllm=~=0.32.0", "--set", f"server.port={port}")
    command = [
        sys.executable,
        "-m",
        "specserve",
        "render",
        str(ROOT / "configs" / "demo.yaml"),
        "--to",
        target,
    ]
    text = subprocess.run([*command, *settings], capture_output=True, text=True, check=True).stdout
    start: Start = read(text)
    # the places of a container or of /var, in a scratch folder; the programs are those of this environment
    home, models = tmp_path / "home", tmp_path / "models"
    home.mkdir()
    models.mkdir()
    for name in ("wide", "draft"):
        (models / name).symlink_to(ROOT / "demo" / name)
    assert start.folder in ("/models", "/srv/models")
    env = {name: value.replace(start.env["HOME"], str(home)) for name, value in start.env.items()}
    env["PATH"] = env.get("PATH", "/usr/local/bin:/usr/bin:/bin").replace("/opt/vllm/bin", str(BIN))
    argv = [str(BIN / "vllm"), *start.argv[1:]]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, cwd=models, env=env, stdout=output, stderr=output, start_new_session=True
        )
    members = [process.pid]
    try:
        waiting = {**os.environ, "MAINPID": str(process.pid)}
        done = subprocess.run(start.wait, env=waiting, timeout=600, check=False)
        assert done.returncode == 0, log.read_text()[-2000:]
        members += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        body = {"model": "demo", "prompt": "def __len__(self):", "max_tokens": 24, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert "return" in json.load(answer)["choices"][0]["text"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b"vllm:spec_decode_num_drafts_total" in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) in (0, -signal.SIGTERM)  # within the time that the files give
    finally:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    assert (home / ".cache" / "vllm").is_dir()  # what vLLM keeps lies in the home that the file names
