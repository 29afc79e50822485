"""Fetching /metrics from whatever listens there: bounded in bytes and in time."""

from __future__ import annotations

import tracemalloc

import pytest
from metrics_server import Script, Traffic, serving

from specserve.errors import TrafficError
from specserve.hardware.host import free_port
from specserve.serve import client
from specserve.serve.client import MOST_BYTES, fetch


def scrape(url: str, *, timeout_s: float = 5.0) -> str:
    return fetch(url, "/metrics", timeout_s=timeout_s)


def test_the_text_comes_as_it_is() -> None:
    script = Script([Traffic(drafts=12)])
    with serving(script) as url:
        assert scrape(url) == script.text


def test_a_path_before_metrics_is_kept() -> None:
    with serving(Script()) as url:
        assert scrape(f"{url}/behind/a/gateway")


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("endless", 200, "is larger than 16 MiB"),
        ("huge", 200, "is larger than 16 MiB"),
        ("trickle", 200, "does not end"),
        ("silent", 200, "has sent nothing for too long"),
        ("cut", 200, "sent an invalid answer"),
        ("rubbish", 200, "sent an invalid answer"),
        ("gzip", 200, "is compressed"),
        ("elsewhere", 200, "redirects (302)"),
        (None, 401, "wants an API key (401)"),
        (None, 404, "there is no `/metrics`"),
        (None, 500, "failed (500)"),
    ],
)
def test_every_other_answer_is_an_error_in_a_bounded_time(
    fault: str | None, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may pause between two bytes: only the limit on the whole answer may end these.
    monkeypatch.setattr(client, "_PATIENCE", 0.01 if fault == "trickle" else 3)
    patience_s = 0.2 if fault == "silent" else 60.0
    with serving(Script(fault=fault, status=status)) as url, pytest.raises(TrafficError) as error:
        scrape(url, timeout_s=patience_s)
    assert message in error.value.message


def test_a_server_that_sends_without_end_costs_no_more_memory_than_the_bound() -> None:
    tracemalloc.start()
    try:
        with serving(Script(fault="huge")) as url, pytest.raises(TrafficError):
            scrape(url)
        assert tracemalloc.get_traced_memory()[1] < 3 * MOST_BYTES
    finally:
        tracemalloc.stop()


def test_nobody_there() -> None:
    with pytest.raises(TrafficError, match="nothing listens at"):
        scrape(f"http://127.0.0.1:{free_port()}")


def test_a_name_that_no_server_has() -> None:
    with pytest.raises(TrafficError, match="cannot reach"):
        scrape("http://no-such-host.invalid:8000", timeout_s=60)
