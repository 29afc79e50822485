"""A detached server with real vLLM: left, asked, listed, stopped for a while, killed, cleared away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.conftest import tiny_profile
from tests.engine.server import unstarted

pytestmark = pytest.mark.engine


def test_a_server_is_left_and_its_engines_death_is_told_though_vllm_leaves_with_code_0(
    tmp_path: Path,
) -> None:
    with unstarted(tmp_path) as server:
        server.up_detached(profile=str(tiny_profile(tmp_path, port=server.port)), small=False)
        assert "`specserve down tiny` stops it" in server.output
        server.state_becomes("ready")
        asked = server.run("ask", "def f(", "--max-tokens", "8", "--temperature", "0")
        assert asked.returncode == 0, asked.stderr
        engine = server.member("EngineCore")
        engine.suspend()
        assert f"process {engine.pid} was stopped" in server.state_becomes("hung")
        engine.kill()
        server.state_becomes("dead")
        (listed,) = json.loads(server.run("ps", "--format", "json").stdout)["servers"]
        server.names_cause("the engine process (.|\\n)*SIGKILL", listed["record"]["cause"])
        server.leaves_nothing()
        server.down("--all")
        assert "there are no detached servers" in server.run("ps").stderr
