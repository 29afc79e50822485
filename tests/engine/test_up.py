"""`specserve up` with real vLLM: it serves with the Hub down, speculation leaves the text as it is, its end is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specserve.metrics import since_by_engine
from tests.engine.conftest import FROM_HUB, HUB_TARGET, hub_of_yesterday, started, tiny_profile
from tests.engine.server import DEMO, Server, unstarted
from tests.engine.texts import acceptance, demo_prompts, near_ties, post, write

if TYPE_CHECKING:
    from hub_server import HubServer


pytestmark = pytest.mark.engine
BODY = {"model": "tiny", "prompt": "def fibonacci(n):", "max_tokens": 16, "temperature": 0}
PROMPTS = demo_prompts(24)


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HubServer, Path]]:
    """The Hub after `lock` and `pull`, which answers no more, and the folder of the profile."""
    folder = tmp_path_factory.mktemp("locked")
    with pytest.MonkeyPatch.context() as patch, hub_of_yesterday(folder, patch) as hub:
        yield hub, folder


@pytest.fixture(scope="module")
def locked(yesterday: tuple[HubServer, Path]) -> Iterator[Server]:
    """The target alone, from the lock, detached."""
    folder = yesterday[1]
    with unstarted(folder) as up:
        profile = tiny_profile(folder, port=up.port, changes=FROM_HUB)
        up.up_detached("--locked", "--alternative", "baseline", profile=str(profile), small=False)
        yield up


def test_a_locked_profile_serves_with_the_hub_down(locked: Server, yesterday: tuple[HubServer, Path]) -> None:
    hub, _ = yesterday
    argv = locked.member("serve").cmdline()
    assert argv[argv.index("--revision") + 1] == hub.repositories[HUB_TARGET].commit
    assert f"url      {locked.url}/v1\n" in locked.output
    assert "model    tiny\n" in locked.output
    assert "\nKV cache 0." in locked.output
    for phase in ("starting the engine", "loading weights", "allocating the KV cache"):
        assert f"  {phase} … " in locked.output
    assert post(locked, **BODY)["usage"]["completion_tokens"] == 16
    assert hub.requests == []


def test_in_float32_every_token_is_the_targets_own(tiny_server: Server, locked: Server) -> None:
    wanted = [(text.ids, text.text) for text in write(locked, PROMPTS, concurrency=4)]
    for concurrency in (1, 4):
        before = acceptance(tiny_server)
        texts = write(tiny_server, PROMPTS, concurrency=concurrency)
        gained = since_by_engine({"": before}, now={"": acceptance(tiny_server)})
        assert [(text.ids, text.text) for text in texts] == wanted
        # Otherwise nothing was speculated, and equality says nothing.
        assert (gained.acceptance_rate or 0) > 0.3
        assert sum(len(text.ids) for text in texts) > 1000


def test_at_a_temperature_drafts_are_accepted_and_the_text_decodes_cleanly(tiny_server: Server) -> None:
    """tests/engine/test_verify.py judges how the tokens are sampled."""
    before = acceptance(tiny_server)
    texts = write(tiny_server, PROMPTS, concurrency=4, temperature=0.7, seed=1)
    gained = since_by_engine({"": before}, now={"": acceptance(tiny_server)})
    assert (gained.acceptance_rate or 0) > 0.3 and all(text.text for text in texts)
    # A byte-level model may once in a while write half a character by itself; at the end it is the token limit.
    assert sum("\ufffd" in text.text.rstrip("\ufffd") for text in texts) <= 1


def test_a_second_server_on_the_port_is_refused(tiny_server: Server) -> None:
    second = tiny_server.run("up", DEMO, "--port", str(tiny_server.port))
    assert second.returncode == 2 and f"port {tiny_server.port} is taken by" in second.stderr
    assert post(tiny_server, **BODY)["model"] == "tiny"


def test_its_engines_death_is_told_though_vllm_leaves_with_code_0(locked: Server) -> None:
    """The last test that the server is for."""
    assert "`specserve down tiny-baseline` stops it" in locked.output
    locked.state_becomes("ready")
    asked = locked.run("ask", "def f(", "--max-tokens", "8", "--temperature", "0")
    assert asked.returncode == 0, asked.stderr
    engine = locked.member("EngineCore")
    engine.suspend()
    assert f"process {engine.pid} was stopped" in locked.state_becomes("hung")
    engine.kill()
    locked.state_becomes("dead")
    (listed,) = json.loads(locked.run("ps", "--format", "json").stdout)["servers"]
    locked.names_cause("the engine process (.|\\n)*SIGKILL", listed["record"]["cause"])
    locked.leaves_nothing()
    locked.down("--all")
    assert "there are no detached servers" in locked.run("ps").stderr


@pytest.mark.soak
def test_in_bf16_a_text_leaves_the_targets_own_only_at_a_near_tie(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A processor without instructions for bf16 takes minutes for it."""
    found = []
    for options in ((), ("--alternative", "baseline")):
        with started(
            tmp_path_factory.mktemp("bf16"), *options, changes={"target": {"dtype": "bfloat16"}}
        ) as up:
            up.wait_ready()
            found.append([write(up, PROMPTS[::2], concurrency=many, top=5) for many in (1, 4)])
            assert up.stop() == 0
    for texts, references in zip(*found, strict=True):
        print(f" [bf16: {near_ties(texts, references)} near-ties in {len(texts)} texts] ", end="")
