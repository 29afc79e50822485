"""The server around the engine: requests it would refuse, figures it hides, doors it leaves open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.profile.schema import Profile
from tests.checks.judging import judge, of, places

Load = Callable[[str], Profile]
EAGLE3 = "speculation: {method: eagle3, model: ./h, num_speculative_tokens: 2}\n"


@pytest.mark.parametrize(
    "speculation", [EAGLE3, EAGLE3.replace("speculation:", "alternatives: {a:").strip() + "}\n"]
)
def test_hidden_counters_matter_only_where_something_speculates(profile: Load, speculation: str) -> None:
    assert len(of("SD146", profile(speculation + "engine: {disable_log_stats: true}"))) == 1
    assert of("SD146", profile("engine: {disable_log_stats: true}")) == []
    assert of("SD146", profile(speculation + "engine: {disable_log_stats: false}")) == []


@pytest.mark.parametrize(
    ("value", "hits"), [("0.05", 1), ("1", 1), ("0", 0), ("0.0", 0), ("null", 0), ("0.00001", 0)]
)
def test_a_min_p_for_everybody_cripples_a_server_that_speculates(
    profile: Load, value: str, hits: int
) -> None:
    text = f"engine: {{override_generation_config: {{min_p: {value}}}}}\n"
    assert places("SD148", profile(EAGLE3 + text)) == ["engine.override_generation_config.min_p"] * hits
    assert of("SD148", profile(text)) == []


def test_a_min_p_is_in_the_way_of_the_method_that_is_in_use(profile: Load) -> None:
    text = f"{EAGLE3}alternatives: {{a: {{method: ngram, num_speculative_tokens: 2}}}}\n"
    (found,) = of("SD148", profile(f"{text}engine: {{override_generation_config: {{min_p: 0.1}}}}\n"))
    assert [item.label for item in found.related] == ["`eagle3` speculates"]


@pytest.mark.parametrize(
    ("server", "env", "hits"),
    [
        ("{host: 0.0.0.0, api_key_env: K}", "{VLLM_SERVER_DEV_MODE: 1}", 1),
        ("{host: 0.0.0.0, api_key_env: K}", "{VLLM_ALLOW_RUNTIME_LORA_UPDATING: true}", 0),
        ("{host: 0.0.0.0}", "{VLLM_ALLOW_RUNTIME_LORA_UPDATING: true}", 1),
        ("{host: 0.0.0.0, api_key_env: K}", "{VLLM_SERVER_DEV_MODE: 0}", 0),
        ("{host: 127.0.0.1}", "{VLLM_SERVER_DEV_MODE: 1}", 0),
    ],
)
def test_developers_endpoints_belong_on_loopback(profile: Load, server: str, env: str, hits: int) -> None:
    found = of("SD108", profile(f"server: {server}\nenv: {env}"))
    assert len([item for item in found if item.span.path.startswith("env.")]) == hits


@pytest.mark.parametrize(
    ("frontend", "codes"),
    [
        ("{ssl_certfile: ./c.pem, ssl_keyfile: ./k.pem}", ["SD108"]),
        ("{ssl_certfile: ./c.pem, ssl_keyfile: ./k.pem, ssl_cert_reqs: 2}", ["SD108"]),
        ("{ssl_certfile: ./c.pem, ssl_keyfile: ./k.pem, ssl_cert_reqs: 2, ssl_ca_certs: ./ca.pem}", []),
        (
            "{ssl_certfile: ./c.pem, ssl_keyfile: ./k.pem, ssl_cert_reqs: 1, ssl_ca_certs: ./ca.pem}",
            ["SD108"],
        ),
    ],
)
def test_encryption_lets_everybody_in_a_demanded_certificate_does_not(
    profile: Load, frontend: str, codes: list[str]
) -> None:
    found = judge(profile(f"server: {{host: 0.0.0.0}}\nfrontend: {frontend}"))
    assert [item.code for item in found] == codes
