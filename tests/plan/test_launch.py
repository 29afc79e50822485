"""A profile to a launch plan: what each section becomes, what is added, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import UsageError
from specserve.plan.launch import launch, with_port
from specserve.plan.launchplan import FromEnv, LaunchPlan, shell
from specserve.profile.load import load_profile, with_alternative
from specserve.profile.schema import Profile
from specserve.vllm.versions import table

Load = Callable[[str], Profile]
DRAFT = "speculation: {method: draft_model, model: org/draft, num_speculative_tokens: 3}\n"


def planned(profile: Profile, *, minor: str = "0.32", platform: str = "cuda") -> LaunchPlan:
    return launch(profile, table=table(minor), platform=platform)


def option(plan: LaunchPlan, flag: str) -> str:
    return plan.argv[plan.argv.index(flag) + 1]


def test_what_is_added_is_said_and_what_is_written_is_not_called_added(profile: Load) -> None:
    plan = planned(profile(DRAFT))
    added = {"--host", "--shutdown-timeout", "--disable-access-log-for-endpoints"}
    assert {item.key for item in plan.added} == added
    assert all(item.why for item in plan.added)
    assert "--host" not in {item.key for item in planned(profile("server: {host: 127.0.0.1}")).added}


@pytest.mark.parametrize(
    ("frontend", "quiet"),
    [
        ("{}", "/health,/metrics"),
        ("{disable_access_log_for_endpoints: /ping}", "/ping"),
        ("{disable_uvicorn_access_log: true}", None),
    ],
)
def test_polling_is_left_out_of_the_log_unless_the_profile_says_what_is(
    profile: Load, frontend: str, quiet: str | None
) -> None:
    plan = planned(profile(f"frontend: {frontend}"))
    flag = "--disable-access-log-for-endpoints"
    assert (option(plan, flag) if flag in plan.argv else None) == quiet


def test_the_drain_ends_before_the_group_is_killed_and_never_below_zero(profile: Load) -> None:
    assert option(planned(profile("server: {shutdown_timeout_s: 30}")), "--shutdown-timeout") == "25"
    assert option(planned(profile("server: {shutdown_timeout_s: 2}")), "--shutdown-timeout") == "0"


def test_the_baseline_has_no_speculation_and_nothing_that_needs_it(profile: Load) -> None:
    loaded = profile(f"{DRAFT}engine: {{per_request_spec_decode_metrics: detailed}}")
    assert option(planned(loaded), "--per-request-spec-decode-metrics") == "detailed"
    baseline = planned(with_alternative(loaded, "baseline"))
    assert option(with_port(baseline, 4242), "--port") == "4242"
    assert not [word for word in baseline.argv if "spec" in word]
    assert "speculative_config" not in baseline.engine_kwargs
    assert baseline.speculation is None


def test_an_alternative_takes_the_place_of_the_main_variant(profile: Load) -> None:
    loaded = profile(DRAFT + "alternatives: {look: {method: ngram, num_speculative_tokens: 2}}")
    plan = planned(with_alternative(loaded, "look"))
    assert json.loads(option(plan, "--speculative-config")) == {
        "method": "ngram",
        "num_speculative_tokens": 2,
    }
    assert plan.fingerprint != planned(loaded).fingerprint
    (place,) = [origin.span for origin in plan.origins if origin.key == "--speculative-config"]
    assert place is not None and place.line == 3


def test_devices_are_chosen_by_the_variable_of_cuda_and_not_on_a_cpu(profile: Load) -> None:
    loaded = profile('hardware: {devices: [1, GPU-abc]}\nenv: {CUDA_VISIBLE_DEVICES: "7"}')
    plan = planned(loaded)
    assert plan.env["CUDA_VISIBLE_DEVICES"] == "1,GPU-abc"
    assert [item.key for item in plan.origins].count("CUDA_VISIBLE_DEVICES") == 1
    assert planned(loaded, platform="cpu").env == {"CUDA_VISIBLE_DEVICES": "7"}


def test_the_key_is_a_name_in_every_form_of_the_plan(profile: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "very-secret-value")
    plan = planned(profile("server: {api_key_env: MY_KEY}"))
    assert plan.env["VLLM_API_KEY"] == FromEnv("MY_KEY")
    forms = [repr(plan), shell(plan.argv, plan.env), str(plan.origins), str(plan.argv)]
    assert not [form for form in forms if "very-secret-value" in form]


def test_each_value_knows_the_file_that_wrote_it_parents_included(write: Callable[..., Path]) -> None:
    base = write("target: {model: org/target}\nengine: {max_num_seqs: 4, seed: 1}", "_base.yaml")
    child = write("extends: ./_base.yaml\nengine: {seed: 2}\nserver: {served_model_name: nice}")
    loaded = load_profile(child, settings=["target.max_model_len=64"])
    places = {item.key: str(item.span) for item in planned(loaded).origins}
    assert places["model"] == f"{base}:1:17"
    assert places["--max-num-seqs"] == f"{base}:2:24"
    assert places["--seed"] == f"{child}:2:16"
    assert places["--served-model-name"].startswith(str(child))
    assert places["--max-model-len"].startswith("--set target.max_model_len")
    assert places["--port"] == "None"


def test_server_arguments_stay_out_of_the_offline_engine(profile: Load) -> None:
    plan = planned(
        profile("frontend: {chat_template: x}\nengine: {max_num_seqs: 4, quantization_config: null}")
    )
    assert plan.engine_kwargs == {"model": "org/target", "max_num_seqs": 4}
    assert option(plan, "--chat-template") == "x"


def test_an_argument_that_this_version_lacks_is_refused_with_its_place(profile: Load) -> None:
    loaded = profile(DRAFT.replace("}", ", fly_window_size: 2}"))
    with pytest.raises(UsageError, match=r"p\.yaml:2:\d+: vLLM 0\.32 has no `fly_window_size`"):
        planned(loaded)
    assert planned(loaded, minor="0.33").speculation is not None


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("gpu7", "gpu7")]
)
def test_the_url_is_one_that_a_client_here_can_reach(profile: Load, host: str, url: str) -> None:
    assert planned(profile(f'server: {{host: "{host}"}}')).url == f"http://{url}:8000"
