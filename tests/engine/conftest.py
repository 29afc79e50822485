"""Real vLLM on the CPU with the small demo pair, before it is widened: fast, and its text is the same."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_server import HubServer

from specserve.serve.client import is_healthy
from tests.engine.server import ROOT, START_LIMIT_S, Server, unstarted

HUB_TARGET, HUB_DRAFT = "org/target", "org/draft"
FROM_HUB = {"target": {"model": HUB_TARGET}, "speculation": {"model": HUB_DRAFT}}
"""Changes to the small pair's profile: its models by their names on the Hub."""


def tiny_profile(folder: Path, *, port: int, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """A profile of the small pair in float32; `changes` are merged section by section."""
    sections: dict[str, dict[str, Any]] = {
        "target": {"model": str(ROOT / "demo" / "target"), "dtype": "float32", "max_model_len": 512},
        "speculation": {
            "method": "draft_model",
            "model": str(ROOT / "demo" / "draft"),
            "num_speculative_tokens": 4,
            "draft_sample_method": "probabilistic",
        },
        "engine": {"enforce_eager": True, "kv_cache_memory_bytes": "256M", "max_num_seqs": 8},
        "server": {"port": port, "served_model_name": "tiny", "shutdown_timeout_s": 15},
        "env": {},
    }
    for section, values in (changes or {}).items():
        sections.setdefault(section, {}).update(values)
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


@contextlib.contextmanager
def started(
    folder: Path, *options: str, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[Server]:
    """`specserve up` on the small pair."""
    with unstarted(folder) as server:
        profile = tiny_profile(folder, port=server.port, changes=changes)
        server.up(*options, profile=str(profile), small=False)
        yield server


@contextlib.contextmanager
def plain_vllm(*words: str, port: int, folder: Path, **env: str) -> Iterator[str]:
    """The URL of a `vllm` that specserve did not start, in this folder; nothing of it stays."""
    command = [str(Path(sys.executable).with_name("vllm")), *words]
    whole, url = {**os.environ, "VLLM_NO_USAGE_STATS": "1", **env}, f"http://127.0.0.1:{port}"
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env=whole, start_new_session=True
        ) as process,
    ):
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not is_healthy(url):
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.2)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that only send requests; it reports the steps of each, as `tune` asks for.

    At last Ctrl-C ends it with a stream open.
    """
    changes = {"engine": {"per_request_spec_decode_metrics": "detailed"}}
    with started(tmp_path_factory.mktemp("tiny-server"), changes=changes) as server:
        server.wait_ready()
        yield server
        stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {"model": "tiny", "prompt": "def f(", "stream": True, "max_tokens": 400, "ignore_eos": True}
        stream.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = stream.getresponse()
        assert response.readline().startswith(b"data: ")
        reader = threading.Thread(target=_read_all, args=(response,))
        reader.start()
        assert server.stop(signal.SIGINT) == 0
        reader.join(timeout=30)
        stream.close()
        assert "stopped in" in server.output
        assert "vLLM server" in max((server.state_folder / "logs").iterdir()).read_text()
        server.leaves_nothing()


def _read_all(response: http.client.HTTPResponse) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):  # a server that is stopped may cut it
        response.read()


def _specserve(*arguments: object) -> None:
    """Runs one command to its end; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "specserve", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def hub_of_yesterday(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Locked and pulled while the Hub answered; now every question to it gets an error."""
    with HubServer() as hub:
        hub.connect(patch, folder)
        for name, place in ((HUB_TARGET, "target"), (HUB_DRAFT, "draft")):
            hub.add(name, ROOT / "demo" / place)
        profile = tiny_profile(folder, port=0, changes=FROM_HUB)
        _specserve("lock", profile)
        _specserve("pull", profile)
        for repository in hub.repositories.values():
            repository.fault = "500"
        hub.requests.clear()
        yield hub
