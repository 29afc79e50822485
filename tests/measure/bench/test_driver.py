"""The load generator's parent: what it reads, and what it says when the child fails. The child here is a few lines."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from specserve.errors import Interrupted, LaunchError, TrafficError
from specserve.measure import servers as server
from specserve.measure.bench.passes import Block
from specserve.measure.bench.plan import Variant
from specserve.measure.bench.result import Point
from specserve.measure.servers import LoadGenerator, Running, Sent, _environment
from specserve.measure.workloads import Prompt
from specserve.metrics import Acceptance, Counters, EngineMetrics, EngineName, Histogram, Metrics
from specserve.serve.client import Client, endpoint
from tests.measure.bench.making import request

HEAD = """
import json, sys
def send(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)
"""
ANSWER = """{
    "pass": wanted["pass"], "id": "p1", "ok": True, "error": None, "prompt_tokens": 3, "output_tokens": 5,
    "ttft_s": 0.1, "latency_s": 0.5,
    "speculation": {"per_step_accepted": [1, 2], "per_step_drafted": [4, 4]},
}"""
URL = "http://127.0.0.1:1"
TRAFFIC = {"requests": [{"id": "p1", "prompt": "x", "max_tokens": 5, "extra_body": {}}]}


def driver(folder: Path, body: str, *, on_tick: Callable[[], None] = lambda: None) -> LoadGenerator:
    child = (sys.executable, "-c", HEAD + dedent(body))
    return LoadGenerator(log_path=folder / "logs" / "generator.log", on_tick=on_tick, command=child)


GOOD = f"""
send("ready", vllm="0.32.0")
for line in sys.stdin:
    wanted = json.loads(line)
    send("request", **{ANSWER})
    send("pass", **{{"pass": wanted["pass"]}}, duration_s=0.6, client_cpu=0.2)
"""


def test_a_pass_is_its_requests_and_its_time(tmp_path: Path) -> None:
    with closing(driver(tmp_path, GOOD)) as generator:
        for _ in range(2):
            sent = generator.send(URL, TRAFFIC)
        assert (sent.duration_s, sent.client_cpu) == (0.6, 0.2)
        (request,) = sent.requests
        assert (request.output_tokens, request.tpot_s, request.steps) == (5, 0.1, ((1, 4), (2, 4)))


def test_before_another_server_has_its_turn_the_last_one_falls_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested_s: list[float] = []
    clock = SimpleNamespace(sleep=rested_s.append, monotonic=lambda: 100 + math.fsum(rested_s))
    monkeypatch.setattr("specserve.measure.servers.time", clock)
    other = "http://127.0.0.1:2"
    with closing(driver(tmp_path, GOOD)) as generator:
        for url, wanted_s in ((URL, 0.0), (URL, 0.0), (other, 1.1), (other, 1.1), (URL, 2.2)):
            generator.send(url, TRAFFIC)
            assert math.fsum(rested_s) == pytest.approx(wanted_s)


def test_a_pass_that_cannot_be_sent_is_told_and_the_next_one_can(tmp_path: Path) -> None:
    body = """
    send("ready", vllm="0.32.0")
    for line in sys.stdin:
        send("failed", **{"pass": json.loads(line)["pass"]}, error="connection refused")
    """
    with closing(driver(tmp_path, body)) as generator:
        for _ in range(2):
            with pytest.raises(
                TrafficError, match=r"could not send to http://127.0.0.1:1: connection refused"
            ):
                generator.send(URL, TRAFFIC)


@pytest.mark.parametrize(
    ("body", "message", "words"),
    [
        ('sys.exit("out of luck")', r"exited with code 1 .*while running its load generator", "out of luck"),
        (
            """send("failed", error="ModuleNotFoundError: No module named 'vllm'")""",
            "while running",
            "make setup",
        ),
    ],
)
def test_a_generator_that_dies_is_told_with_its_last_words(
    tmp_path: Path, body: str, message: str, words: str
) -> None:
    with closing(driver(tmp_path, body)) as generator, pytest.raises(LaunchError, match=message) as caught:
        generator.wait_ready()
    assert words in f"{caught.value.causes} {caught.value.hint}"


def test_waiting_can_be_broken_off_and_leaves_no_process(tmp_path: Path) -> None:
    def stop() -> None:
        raise Interrupted("stopped", exit_code=128 + 2)

    others = set(psutil.Process().children())
    generator = driver(tmp_path, "import time; time.sleep(600)", on_tick=stop)
    begun = set(psutil.Process().children()) - others  # it, and what ends it should specserve be killed
    (child,) = [each for each in begun if "time.sleep(600)" in " ".join(each.cmdline())]
    with pytest.raises(Interrupted), closing(generator):
        generator.send(URL, TRAFFIC)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_keys_of_other_services_do_not_reach_it_and_loopback_needs_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "MY_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("no_proxy", "intern.example")
    env = _environment(["MY_KEY"])
    assert "OPENAI_API_KEY" not in env and "HF_TOKEN" not in env and env["MY_KEY"] == "secret"
    assert _environment(["HF_TOKEN"])["HF_TOKEN"] == "secret"
    assert env["no_proxy"] == "intern.example,127.0.0.1,localhost,::1"


PROMPTS = tuple(Prompt(f"p{number}", 8, text=f"text {number}") for number in range(3))


def salts(name: str) -> list[str]:
    """Of the requests of one block, as they are sent to a variant."""
    sent: list[dict[str, Any]] = []

    def send(_url: str, traffic: dict[str, Any]) -> Sent:
        sent.extend(traffic["requests"])
        return Sent(1.0, 0.1, tuple(request(item["id"]) for item in traffic["requests"]))

    client = cast(Client, SimpleNamespace(metrics=lambda: None))
    variant = Variant(name, url=URL)
    running = Running(variant, URL, "m", lambda: None, client)
    block = Block(3, Point("chat", 0.0, 1), PROMPTS, seed=7)
    running.run(cast(LoadGenerator, SimpleNamespace(send=send)), block, launch=0)
    return [item["extra_body"]["cache_salt"] for item in sent]


@pytest.mark.parametrize("name", ["ticket", "ticket#17", "#", ""])
def test_prompts_stay_apart_whatever_a_user_calls_them(name: str) -> None:
    assert request(f"{name}#3").prompt == name


def test_no_variant_finds_in_a_cache_what_another_or_an_earlier_run_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The requests of one block may share prefixes."""
    (one,), (other,) = set(salts("a")), set(salts("a much longer name"))
    assert one != other and len(one) == len(other) and set(salts("a")) == {one}
    monkeypatch.setattr(server, "_NONCE", "drawn anew")
    assert one not in salts("a")


def test_a_pass_has_what_the_counters_gained_by_it_and_nothing_of_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each finished request has one draft of four tokens; the counters hold the last one a moment after its end."""
    finished, late = 5, 0

    def metrics() -> Any:
        nonlocal finished, late
        counters = Counters(
            Acceptance(finished, 4 * finished, 0),
            finished,
            preemptions=2 * finished,
            queue_s=Histogram({math.inf: finished}, 0.5 * finished),
        )
        finished, late = finished + late, 0
        return Metrics({EngineName("m", "0"): EngineMetrics(counters, speculates=True)})

    def send(_url: str, traffic: dict[str, Any]) -> Sent:
        nonlocal finished, late
        finished, late = finished + len(traffic["requests"]) - 1, 1
        return Sent(1.0, 0.1, tuple(request(item["id"]) for item in traffic["requests"]))

    client = Client(endpoint(URL, api_key_env=None))
    monkeypatch.setattr(client, "metrics", metrics)
    variant = Variant("a", url=URL)
    running = Running(variant, URL, "m", lambda: None, client)
    generator = cast(LoadGenerator, SimpleNamespace(send=send))
    block = Block(3, Point("chat", 0.0, 1), PROMPTS, seed=7)
    running.run(generator, block, launch=-1)
    done = running.run(generator, block, launch=0)
    assert done.acceptance and done.acceptance.drafts == len(PROMPTS)
    assert done.queue_s == pytest.approx(0.5 * len(PROMPTS)) and done.preemptions == 2 * len(PROMPTS)
