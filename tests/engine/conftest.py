"""Real vLLM on the CPU with the small demo pair, before it is widened: fast, and its text is the same."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from specserve.hardware.host import free_port
from specserve.serve.client import is_healthy

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from hub_server import HubServer

ROOT = Path(__file__).parents[2]
UP = [sys.executable, "-m", "specserve", "up"]
START_LIMIT_S = 240.0
HUB_TARGET, HUB_DRAFT = "org/target", "org/draft"
FROM_HUB = {"target": {"model": HUB_TARGET}, "speculation": {"model": HUB_DRAFT}}
"""Changes to the small pair's profile: its models by their names on the Hub."""


@dataclasses.dataclass(frozen=True)
class Up:
    """A `specserve up` that runs; what it wrote stands in the two files."""

    process: subprocess.Popen[bytes]
    profile: Path
    port: int
    out_path: Path
    err_path: Path
    state: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        return self.err_path.read_text()

    def wait_ready(self) -> None:
        """Until it has said so."""
        self.wait_for(lambda: "Ctrl-C stops it" in self.err)

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not condition():
            assert self.process.poll() is None, self.err
            assert time.monotonic() < deadline, self.err
            time.sleep(0.1)

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal, return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def members(self) -> list[psutil.Process]:
        """vLLM's processes: all that came out of specserve, in their own session."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def engine_core(self) -> psutil.Process | None:
        """The engine process, once it exists and has named itself."""
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                if "EngineCore" in " ".join(process.cmdline()):
                    return process
        return None


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
) -> Iterator[Up]:
    """`specserve up` on the small pair; killed at the end, with all that came out of it, if it still runs."""
    port = free_port()
    with up_on(folder, tiny_profile(folder, port=port, changes=changes), *options, port=port) as up:
        yield up


@contextlib.contextmanager
def up_on(folder: Path, profile: Path, *options: str, port: int) -> Iterator[Up]:
    """The same on a profile; its output and its state go to the folder."""
    out_path, err_path = folder / "up.out", folder / "up.err"
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(folder / "state")}
    with (
        out_path.open("wb") as out,
        err_path.open("wb") as err,
        subprocess.Popen([*UP, str(profile), *options], stdout=out, stderr=err, env=env) as process,
    ):
        up = Up(process, profile, port, out_path, err_path, folder / "state")
        try:
            yield up
        finally:
            if process.poll() is None:
                for child in up.members():
                    with contextlib.suppress(psutil.Error):
                        child.kill()
                process.kill()


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


StartUp = Callable[..., contextlib.AbstractContextManager[Up]]


@pytest.fixture
def start_up(tmp_path: Path) -> StartUp:
    """`with start_up("--locked", changes={"env": {…}}) as up:` runs `specserve up` on the small pair."""
    return functools.partial(started, tmp_path)


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One server for all tests that only send requests."""
    with started(tmp_path_factory.mktemp("tiny-server")) as up:
        up.wait_ready()
        assert is_healthy(up.url)
        yield up
        assert up.stop(signal.SIGTERM) == 0


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


@pytest.fixture
def hub_of_yesterday(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Locked and pulled while the Hub answered; now every question to it gets an error."""
    with HubServer() as hub:
        hub.connect(monkeypatch, tmp_path)
        for name, folder in ((HUB_TARGET, "target"), (HUB_DRAFT, "draft")):
            hub.add(name, ROOT / "demo" / folder)
        profile = tiny_profile(tmp_path, port=0, changes=FROM_HUB)
        _specserve("lock", profile)
        _specserve("pull", profile)
        for repository in hub.repositories.values():
            repository.fault = "500"
        hub.requests.clear()
        yield hub
