"""What a variant is sent: the same as the others, and nothing that an earlier run left in a cache."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specserve.measure import servers as server
from specserve.measure.bench.blocks import Block
from specserve.measure.bench.generator import LoadGenerator, Sent
from specserve.measure.bench.plan import Variant
from specserve.measure.bench.result import Point
from specserve.measure.servers import Running
from specserve.measure.workloads.load import Prompt
from specserve.metrics.counters import Acceptance, Counters, EngineName, Histogram
from specserve.metrics.prometheus import EngineMetrics, Metrics
from specserve.serve.client import Client
from specserve.serve.requests import endpoint
from tests.measure.bench.making import request

URL = "http://127.0.0.1:9"
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

    client = Client(endpoint(URL))
    monkeypatch.setattr(client, "metrics", metrics)
    variant = Variant("a", url=URL)
    running = Running(variant, URL, "m", lambda: None, client)
    generator = cast(LoadGenerator, SimpleNamespace(send=send))
    block = Block(3, Point("chat", 0.0, 1), PROMPTS, seed=7)
    running.run(generator, block, launch=-1)
    done = running.run(generator, block, launch=0)
    assert done.acceptance and done.acceptance.drafts == len(PROMPTS)
    assert done.queue_s == pytest.approx(0.5 * len(PROMPTS)) and done.preemptions == 2 * len(PROMPTS)
