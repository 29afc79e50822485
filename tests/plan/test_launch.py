"""A profile to a launch plan: what each section becomes, what is added, and its form for a shell."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import UsageError
from specserve.plan.launch import launch, with_port
from specserve.plan.launchplan import FromEnv, LaunchPlan, shell
from specserve.profile.load import load_profile, with_alternative
from specserve.profile.schema import Profile
from specserve.vllm.versions import known_versions, table

Load = Callable[[str], Profile]
LLAMA = Path(__file__).parents[2] / "configs" / "llama70b-8b.yaml"
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
    assert json.loads(option(plan, "--speculative-config"))["method"] == "ngram"
    assert plan.fingerprint != planned(loaded).fingerprint
    (place,) = [origin.span for origin in plan.origins if origin.key == "--speculative-config"]
    assert place is not None and place.line == 3


def test_devices_are_chosen_by_the_variable_of_cuda_and_not_on_a_cpu(profile: Load) -> None:
    loaded = profile('hardware: {devices: [1, GPU-abc]}\nenv: {CUDA_VISIBLE_DEVICES: "7"}')
    plan = planned(loaded)
    assert plan.env["CUDA_VISIBLE_DEVICES"] == "1,GPU-abc"
    assert [item.key for item in plan.origins].count("CUDA_VISIBLE_DEVICES") == 1
    assert planned(loaded, platform="cpu").env == {"CUDA_VISIBLE_DEVICES": "7"}


@pytest.mark.parametrize("value", [None, "", "a $b 'c'"])
def test_a_pasted_launch_takes_the_key_of_whoever_pastes_it_or_does_not_start(value: str | None) -> None:
    text = shell(("printenv", "VLLM_API_KEY"), {"VLLM_API_KEY": FromEnv("MY_KEY")})
    env = {"PATH": os.environ["PATH"]} | ({} if value is None else {"MY_KEY": value})
    done = subprocess.run(["sh", "-c", text], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == (f"{value}\n" if value else "")
    assert bool(done.returncode) is ("MY_KEY" in done.stderr) is (not value)  # it would serve everybody


def test_one_option_stands_on_one_line() -> None:
    text = shell(("vllm", "serve", "org/m", "--a", "1", "--b", "--c", "x", "y"), {"E": "1"})
    assert text == "E=1 \\\nvllm serve org/m \\\n  --a 1 \\\n  --b \\\n  --c x y\n"


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


def test_a_launch_that_needs_no_hub_leaves_it_alone_and_keeps_the_name_of_the_model(profile: Load) -> None:
    for text, name in (("", "org/target"), ("server: {served_model_name: it}", "it")):
        plan = launch(profile(text), table=table("0.32"), platform="cuda", offline=True)
        assert plan.env == {"HF_HUB_OFFLINE": "1"}
        assert plan.argv.count("--served-model-name") == 1 and option(plan, "--served-model-name") == name


def test_server_arguments_stay_out_of_the_offline_engine(profile: Load) -> None:
    target = 'target: {model: org/target, quantization: "None"}'
    plan = planned(
        profile(f"{target}\nfrontend: {{chat_template: x}}\nengine: {{max_num_seqs: 4, seed: null}}")
    )
    assert plan.engine_kwargs == {"model": "org/target", "quantization": None, "max_num_seqs": 4}
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


TWO = ("hardware.nodes=2", "target.pipeline_parallel_size=2")
LED = (*TWO, "engine.master_addr=10.0.0.1")


def on_node(rank: int, *settings: str, version: str = "0.33") -> LaunchPlan:
    return launch(
        load_profile(str(LLAMA), settings=settings), table=table(version), platform="cuda", node=rank
    )


@pytest.mark.parametrize("version", known_versions())
def test_each_node_has_its_number_and_only_the_first_answers(version: str) -> None:
    first, second = (on_node(rank, *LED, version=version) for rank in (0, 1))
    words = "--nnodes 2 --node-rank {} --master-addr 10.0.0.1 --master-port 29501"
    assert first.argv[-8:] == tuple(words.format(0).split())
    assert second.argv[-9:] == (*words.format(1).split(), "--headless")
    assert (first.answers, second.answers) == (True, False)
    assert first.engine_kwargs["nnodes"] == 2
    assert option(on_node(1, *LED, "engine.master_port=4000"), "--master-port") == "4000"


@pytest.mark.parametrize(
    ("settings", "rank", "message"),
    [
        ((), 0, "there is no node 0 in a launch of 1"),
        (("hardware.nodes=2", "engine.distributed_executor_backend=ray"), 0, "there is no node 0"),
        ((*TWO, "engine.data_parallel_size=2"), 0, ": specserve does not plan data parallelism across nodes"),
    ],
)
def test_what_no_command_could_run_is_refused(settings: tuple[str, ...], rank: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        on_node(rank, *settings)
