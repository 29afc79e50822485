"""Fetching /metrics from whatever listens there; floods and drips stand in tests/cli/test_hostile.py."""

from __future__ import annotations

import pytest
from metrics_server import Script, Traffic, serving

from specserve.errors import TrafficError
from specserve.hardware.host import free_port
from specserve.serve import client
from specserve.serve.client import fetch


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
        ("silent", 200, "has sent nothing for too long"),
        ("cut", 200, "sent an invalid answer"),
        ("rubbish", 200, "sent an invalid answer"),
        (None, 401, "wants an API key (401)"),
        (None, 404, "there is no `/metrics`"),
        (None, 500, "failed (500)"),
    ],
)
def test_every_other_answer_is_an_error_in_a_bounded_time(
    fault: str | None, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PATIENCE", 3)
    patience_s = 0.2 if fault == "silent" else 60.0
    with serving(Script(fault=fault, status=status)) as url, pytest.raises(TrafficError) as error:
        scrape(url, timeout_s=patience_s)
    assert message in error.value.message


def test_nobody_there() -> None:
    with pytest.raises(TrafficError, match="nothing listens at"):
        scrape(f"http://127.0.0.1:{free_port()}")


def test_a_name_that_no_server_has() -> None:
    with pytest.raises(TrafficError, match="cannot reach"):
        scrape("http://no-such-host.invalid:8000", timeout_s=60)
