"""Nobody reaches a server by oversight: loopback unless it is said, and what is said is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.checks.prepare import refuse_exposed
from specserve.cli.app import _run as run
from specserve.errors import ProfileError
from specserve.plan.launch import launch
from specserve.profile.schema import Profile
from specserve.report.findings import StderrNotices
from specserve.vllm.versions import known_versions, table

Load = Callable[[str], Profile]


@pytest.mark.parametrize("version", known_versions())
def test_a_server_listens_on_loopback_unless_the_profile_says_otherwise(version: str, profile: Load) -> None:
    plan = launch(profile(""), table=table(version), platform="cuda")
    assert plan.host == "127.0.0.1"
    assert plan.argv[plan.argv.index("--host") + 1] == "127.0.0.1"  # vLLM's own default is everybody
    assert "--host" in {item.key for item in plan.added}


@pytest.mark.parametrize(
    "server",
    [*("127.0.0.1", "127.255.1.9", "localhost", "LOCALHOST", "'::1'"), "0.0.0.0, api_key_env: MY_KEY"],
)
def test_on_loopback_or_with_a_key_it_starts(server: str, profile: Load) -> None:
    refuse_exposed(profile(f"server: {{host: {server}}}"), insecure=False, notices=StderrNotices())


OPEN = [
    "0.0.0.0", "::", "0", "0x7f000001", "2130706433", "127.1", "::ffff:127.0.0.1", "::ffff:0.0.0.0",
    "0:0:0:0:0:0:0:0",
    "10.0.0.7", "localhost.", "localhost.example.org", "127.0.0.1.example.org",
    "::1%eth0", "fe80::1",
]  # fmt: skip


@pytest.mark.parametrize("host", OPEN)
def test_what_is_not_surely_loopback_is_refused_without_a_key_and_told_why_a_key_is_not_all(
    host: str, profile: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = profile(f"server: {{host: {ascii(host).replace(chr(39), chr(34))}}}")
    with pytest.raises(ProfileError) as raised:
        refuse_exposed(loaded, insecure=False, notices=StderrNotices())
    assert raised.value.hint is not None
    for word in ("server.api_key_env", "/metrics", "/health", "/invocations", "--insecure"):
        assert word in raised.value.hint
    refuse_exposed(loaded, insecure=True, notices=StderrNotices())
    assert "anyone who can reach it can use the model" in (said := capsys.readouterr().err)
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("host", ["''", "' '"])
def test_no_host_is_never_everybody(host: str, profile: Load, write: Callable[..., object]) -> None:
    assert run(["lint", str(write(f"target: {{model: m}}\nserver: {{host: {host}}}\n"))]) == 1
    assert profile("server: {host: ~}").server.host == "127.0.0.1"
