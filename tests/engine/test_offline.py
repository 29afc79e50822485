"""Air-gapped: a pair that was pulled answers in a network namespace that holds loopback and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import HubServer

from tests.engine.conftest import FROM_HUB, HUB_DRAFT, HUB_TARGET, tiny_profile
from tests.engine.server import ROOT

pytestmark = pytest.mark.engine
ALONE = ("unshare", "--net", "--map-root-user")
UP = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    fcntl.ioctl(asked, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: up and running
assert [name for _, name in socket.if_nameindex()] == ["lo"]
os.execv(sys.executable, [sys.executable, "-m", "specserve", *sys.argv[1:]])
"""


def specserve(*words: object, cwd: Path, alone: bool = False, **env: str) -> str:
    """What a command printed; `alone`: without any network."""
    first = [*ALONE, sys.executable, "-c", UP] if alone else [sys.executable, "-m", "specserve"]
    whole = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_NO_USAGE_STATS": "1", **env}
    done = subprocess.run(
        [*first, *map(str, words)],
        cwd=cwd,
        env=whole,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_pulled_pair_is_checked_and_generates_without_any_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache was moved, and the profile names it by a relative path, as rendered files do."""
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("this kernel lets nobody make a network namespace: `unshare --net` fails")
    cache = {"env": {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "./hub"}}
    with HubServer() as hub:
        hub.connect(monkeypatch, tmp_path / "online")
        for name, place in ((HUB_TARGET, "target"), (HUB_DRAFT, "draft")):
            hub.add(name, ROOT / "demo" / place)
        profile = tiny_profile(tmp_path, port=0, changes=FROM_HUB)
        folders = specserve("pull", profile, cwd=tmp_path).split()
    Path(folders[0]).parents[2].rename(tmp_path / "hub")
    profile = tiny_profile(tmp_path, port=0, changes=FROM_HUB | cache)
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "def f(", "max_tokens": 8, "temperature": 0}))
    checked = specserve(
        "check", profile, "--offline", "--format", "json", cwd=tmp_path, alone=True, HF_ENDPOINT="http://hub"
    )
    assert json.loads(checked)["skipped"] == []
    pulled = [path for path in (tmp_path / "hub").glob("*/snapshots/*/*") if "target" in str(path)]
    for path in pulled:
        os.utime(path, (0, path.stat().st_mtime))
    specserve("generate", profile, "in.jsonl", "-o", "out.jsonl", cwd=tmp_path, alone=True, HF_ENDPOINT="")
    answer = json.loads((tmp_path / "out.jsonl").read_text())
    assert answer["text"] and not answer.get("error")
    read = {path for path in pulled if path.stat().st_atime}
    assert read in ({*pulled}, set())  # no file is pulled for nothing; none: this file system notes no reads
