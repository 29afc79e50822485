"""One request to a server: what is sent, what is measured, and what is said when it goes wrong."""

from __future__ import annotations

import os

import pytest
from openai_server import Script, serving

from specserve.errors import TrafficError, UsageError
from specserve.metrics import Acceptance
from specserve.serve.client import Answer, Client, endpoint


def ask(script: Script, *, api_key_env: str | None = None, **params: float) -> Answer:
    with serving(script) as url:
        client = Client(endpoint(url, api_key_env=api_key_env))
        return client.ask("hi", on_text=lambda _kind, _text: None, **params)


def test_the_speed_counts_tokens_after_the_first() -> None:
    answer = Answer("m", "chat", completion_tokens=101, ttft_s=0.5, last_token_s=2.5)
    assert answer.tokens_per_s == pytest.approx(50)


@pytest.mark.parametrize(
    "answer",
    [
        Answer("m", "chat", completion_tokens=1, ttft_s=0.5, last_token_s=0.5),
        Answer("m", "chat", completion_tokens=5, ttft_s=0.5, last_token_s=0.5),
        Answer("m", "chat", completion_tokens=None, ttft_s=0.5, last_token_s=1.5),
        Answer("m", "chat", completion_tokens=0),
    ],
)
def test_without_a_time_between_tokens_there_is_no_speed(answer: Answer) -> None:
    assert answer.tokens_per_s is None


def test_only_what_was_asked_for_is_sent_as_a_chat_with_the_first_model() -> None:
    script = Script()
    answer = ask(script, max_tokens=3, temperature=0.0)
    assert (answer.mode, answer.model) == ("chat", "demo")
    assert script.requests == [
        {
            "path": "/v1/chat/completions",
            "model": "demo",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 3,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_the_acceptance_is_the_gain_of_the_counters() -> None:
    answer = ask(Script(finished=5))
    assert (answer.speculates, answer.other_requests) == (True, 0)
    assert answer.acceptance == Acceptance(10, 40, 20, (8,))


OPENAI = {
    "OPENAI_API_KEY": "sk-leak-key",
    "OPENAI_ADMIN_KEY": "sk-leak-admin",
    "OPENAI_ORG_ID": "org-leak",
    "OPENAI_PROJECT_ID": "proj-leak",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/leak",
    "OPENAI_WEBHOOK_SECRET": "whsec-leak",
    "OPENAI_CUSTOM_HEADERS": "X-Leak: leak\nAuthorization: Bearer sk-leak-header",
    "OPENAI_API_TYPE": "azure",
    "AZURE_OPENAI_API_KEY": "sk-leak-azure",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
}


def test_nothing_of_the_environment_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OPENAI.items():
        monkeypatch.setenv(name, value)
    script = Script()
    ask(script)
    assert len(script.headers) >= 3  # models, metrics and the request itself
    assert not [header for header in script.headers if "leak" in str(header) or "authorization" in header]
    allowed = "host accept accept-encoding connection user-agent content-type content-length"
    assert set().union(*script.headers) <= set(allowed.split())
    assert {name: value for name, value in OPENAI.items() if name in os.environ} == OPENAI


def test_no_connection_is_used_twice() -> None:
    """A server closes an idle one at its own time, and a request that is sent at that moment is lost."""
    script = Script()
    with serving(script) as url:
        client = Client(endpoint(url, api_key_env=None))
        client.models()
        client.models()
    assert len(script.connections) == 2


def test_the_key_goes_to_the_api_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-leak")
    script = Script(key="s3cret")
    ask(script, api_key_env="MY_KEY")
    keys = [header.get("authorization") for header in script.headers]
    assert keys.count("Bearer s3cret") == 2
    assert set(keys) == {"Bearer s3cret", None}


def test_a_key_goes_nowhere_unless_its_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    script = Script()
    ask(script)
    assert {header.get("authorization") for header in script.headers} == {None}
    monkeypatch.setenv("VLLM_API_KEY", " ")
    assert endpoint("http://x", api_key_env="VLLM_API_KEY").api_key is None


def test_a_key_is_asked_for_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    with pytest.raises(TrafficError, match=r"wants an API key \(401\)") as error:
        ask(Script(key="s3cret"))
    assert "VLLM_API_KEY" in str(error.value.hint)
    monkeypatch.setenv("MY_KEY", "wrong")
    with pytest.raises(TrafficError, match=r"refused the key \(401\)") as error:
        ask(Script(key="s3cret"), api_key_env="MY_KEY")
    assert "wrong" not in str(vars(error.value))


def test_a_server_without_models() -> None:
    with pytest.raises(TrafficError, match="serves no model"):
        ask(Script(models=()))


def test_another_kind_of_server() -> None:
    with (
        serving(Script()) as url,
        pytest.raises(TrafficError, match=r"there is no `/v1/models` at .*/wiki \(404\)") as error,
    ):
        Client(endpoint(f"{url}/wiki", api_key_env=None)).ask("hi", on_text=lambda _kind, _text: None)
    assert "root URL" in str(error.value.hint)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Script(status=500), r"failed \(500\): engine \?\[31m dead"),
        (Script(status=503, body="<html>later</html>"), r"failed \(503\)"),
        (
            Script(status=400, body='{"error": {"message": "max_tokens is too large"}}'),
            "max_tokens is too large",
        ),
        (Script(status=422, body='{"detail": "what?"}'), "does not take this request: what?"),
        (Script(status=302, body=""), r"redirects \(302\)"),
        (Script(breaks="error"), r"failed in the middle of the answer: engine \?\[31m dead"),
        (Script(breaks="cut"), "sent an invalid answer: IncompleteRead"),
        (Script(breaks="rubbish"), "sent an invalid answer:"),
        (Script(finish_reason=None), "ended without a finish reason"),
    ],
)
def test_a_failing_server_is_quoted_without_its_control_sequences(script: Script, message: str) -> None:
    with pytest.raises(TrafficError, match=message) as error:
        ask(script)
    assert error.value.message.isprintable()


def test_one_request_is_never_tried_twice() -> None:
    script = Script(status=500)
    with pytest.raises(TrafficError):
        ask(script)
    assert len(script.requests) == 1


def test_without_usage_the_number_of_tokens_is_unknown_rather_than_guessed() -> None:
    answer = ask(Script(usage=False))
    assert answer.completion_tokens is None
    assert answer.tokens_per_s is None


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("HTTPS://Example.com/llm/v1", "https://example.com/llm"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_urls_are_read_as_people_write_them(url: str, root: str) -> None:
    assert endpoint(url, api_key_env=None).root == root


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://x", "http://x:99999", "http://x?y", "http://x:port", "http://[::"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        endpoint(url, api_key_env=None)


@pytest.mark.parametrize("url", ["http://user:hunter2@host", "http://user:hunter2@host:bad"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as error:
        endpoint(url, api_key_env=None)
    assert "hunter2" not in str(vars(error.value))
