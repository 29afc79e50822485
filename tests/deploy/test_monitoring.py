"""Alert rules and dashboard: they name what vLLM exports, Prometheus takes them, and the alerts fire when they must."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import prometheus, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from specserve.deploy.monitoring import HEAD, alert_groups, canary_alerts, shipped
from specserve.profile.schema import Profile
from specserve.profile.writer import yaml_text

ROOT = Path(__file__).parents[2]
EXPORTED = ROOT / "tests" / "data" / "metrics" / "demo-after.txt"
"""Of a server with speculation."""
PROMTOOL = shutil.which("promtool")
promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing (Debian: apt install prometheus)")
MODEL = 'my "model" \\d'
SHIPPED = shipped("alerts.yaml")
PROMISING = """
name: mine
server: {served_model_name: 'my "model" \\d'}
speculation: {method: ngram, num_speculative_tokens: 4}
expect:
  - {workload: chat, concurrency: 16, min_mean_acceptance_length: 2.2}
  - {workload: code, concurrency: 4, min_mean_acceptance_length: 3.0, min_acceptance_rate: 0.5}
"""
MakeProfile = Callable[[str], Profile]


BOARD: dict[str, Any] = json.loads(shipped("dashboard.json"))


def rules_of(profile: Profile) -> str:
    """The rule file as `render --to monitoring` writes it."""
    return yaml_text({"groups": alert_groups(profile)}, head=HEAD)


def queries() -> list[str]:
    """Every PromQL expression of the dashboard."""
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def rules(text: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def exported(*expressions: str) -> bool:
    """Whether every metric in these is one that vLLM exports."""
    there = set(re.findall(r"^(vllm:\w+)", EXPORTED.read_text(encoding="utf-8"), re.M))
    return {*re.findall(r"vllm:\w+", " ".join(expressions))} <= there


def test_every_rule_names_what_vllm_exports_how_grave_it_is_and_what_to_look_at(
    profile: MakeProfile,
) -> None:
    found = rules(rules_of(profile(PROMISING)))
    assert exported(*(rule["expr"] for rule in found))
    assert all(re.fullmatch(r"\w+:specserve_\w+:\w+", rule["record"]) for rule in found if "record" in rule)
    alerts = [rule for rule in found if "alert" in rule]
    assert {rule["labels"]["severity"] for rule in alerts} == {"critical", "warning", "info"}
    for rule in alerts:
        assert rule["annotations"]["summary"].count("$labels.model_name") == 1
        assert len(rule["annotations"]["description"]) > 30


def test_a_profiles_promises_become_alerts_the_weakest_of_each_kind(profile: MakeProfile) -> None:
    found = {
        rule["labels"]["promise"]: rule["expr"]
        for rule in rules(rules_of(profile(PROMISING)))
        if "promise" in rule.get("labels", {})
    }
    assert set(found) == {"min_mean_acceptance_length", "min_acceptance_rate"}
    assert ") < 2.2 and" in found["min_mean_acceptance_length"]
    assert all('{model_name="my \\"model\\" \\\\d"}' in expression for expression in found.values())
    assert rules_of(profile("speculation: null")) == SHIPPED  # no promise, and as it would be written


def test_every_panel_shows_what_a_rule_records_or_vllm_exports() -> None:
    recorded = {rule["record"] for rule in rules(SHIPPED) if "record" in rule}
    asked = {query.partition("{")[0] for query in queries()}
    assert {name for name in asked if not name.startswith("vllm:")} <= recorded
    assert exported(*queries()) and len(asked) == len(queries()) == 8


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value with its place."""
    if not isinstance(value, dict | list):
        yield at, value
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(item, f"{at}/{key}")


def test_grafanas_own_models_know_all_that_the_dashboard_says() -> None:
    register_default_plugins()
    read = Dashboard.from_json(BOARD)
    assert {*leaves(BOARD)} <= {*leaves(json.loads(JSONEncoder().encode(read)))}
    panels = [panel for panel in read.panels or [] if isinstance(panel, Panel)]
    assert {type(panel.options) for panel in panels} <= {timeseries.Options, type(None)}
    assert {type(target) for panel in panels for target in panel.targets or []} == {prometheus.Dataquery}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=60)


@promtool
def test_prometheus_takes_the_rules_and_every_query_of_the_dashboard(
    profile: MakeProfile, tmp_path: Path
) -> None:
    asked = [re.sub(r"\$(__rate_interval|\w+)", "5m", query) for query in queries()]
    panels = [{"record": f"p:{number}", "expr": query} for number, query in enumerate(asked)]
    boards = yaml.safe_dump({"groups": [{"name": "p", "rules": panels}]})
    for text in (SHIPPED, rules_of(profile(PROMISING)), boards):
        (tmp_path / "rules.yaml").write_text(text, encoding="utf-8")
        done = run("check", "rules", tmp_path / "rules.yaml")
        assert done.returncode == 0, done.stdout + done.stderr


SERIES = {
    "drafts": "spec_decode_num_drafts_total",
    "drafted": "spec_decode_num_draft_tokens_total",
    "accepted": "spec_decode_num_accepted_tokens_total",
    "generated": "generation_tokens_total",
    "prompts": "prompt_tokens_total",
    "running": "num_requests_running",
    "preemptions": "num_preemptions_total",
    "usage": "kv_cache_usage_perc",
    "last": "spec_decode_num_accepted_tokens_per_pos_total",  # of one position
}
SERVER = f'job="vllm",instance="a:8000",model_name={json.dumps(MODEL)},engine="0"'
WELL = {"drafts": "0+600x400", "accepted": "0+1500x400", "generated": "0+2100x400", "prompts": "0+900x400"}


def is_raised(alert: str, text: str, series: dict[str, str], *, at: str, folder: Path) -> bool:
    """Whether an alert is raised at that time, by promtool, on series of one sample a minute.

    `alert`: its name, or name and labels in the way of PromQL.
    """
    (folder / "rules.yaml").write_text(text, encoding="utf-8")
    name, _, labels = alert.partition(",")
    asked = f'ALERTS{{alertname="{name}",alertstate="firing",{labels}}} > bool 0'
    test = {
        "interval": "1m",
        "input_series": [{"series": f"vllm:{name}", "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": asked, "eval_time": at, "exp_samples": []}],
    }
    whole = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    done = run("test", "rules", folder / "test.yaml")
    raised = "got:" in done.stdout + done.stderr
    assert raised == bool(done.returncode), done.stdout + done.stderr
    return raised


def of_server(**series: str) -> dict[str, str]:
    return {f"{SERIES[name]}{{{SERVER}}}": values for name, values in series.items()}


SINKING = {
    "drafts": "0+600x420",
    "drafted": "0+2400x420",
    "accepted": "0+1500x100 150000+1400x90 276000+1300x90 393000+1200x140",
}
"""Over seven hours."""


@promtool
@pytest.mark.parametrize(
    "otherwise",
    [
        {"drafts": "0+600x200 0+600x220"},  # restarted
        {"drafted": "0+2400x100 240000+2200x90 438000+2000x90 618000+1800x140"},  # a schedule lowers K
        {"accepted": "0+1500x100 150000+1200x90 258000+1400x90 384000+1200x140"},  # traffic that comes and goes
    ],
    ids=["restarted", "lower K", "comes and goes"],
)  # fmt: skip
def test_acceptance_that_sinks_otherwise_than_by_rot_raises_nothing(
    otherwise: dict[str, str], tmp_path: Path
) -> None:
    series = of_server(**(SINKING | otherwise))
    assert not is_raised("SpecserveAcceptanceSinks", SHIPPED, series, at="400m", folder=tmp_path)


@promtool
@pytest.mark.parametrize(
    ("alert", "at", "series"),
    [
        ("SpecserveDraftCollapsed", "10m", {"drafts": "0+600x400", "accepted": "0+6x400"}),
        ("SpecserveNoDrafts", "30m", {"drafts": "0x400", "accepted": "0x400", "generated": "0+2100x400"}),
        ("SpecserveAcceptanceFell", "300m", {"drafts": "0+600x400", "accepted": "0+1500x200 300000+200x200"}),
        ("SpecserveAcceptanceSinks", "400m", SINKING),
        ("SpecserveServerHangs", "10m", {"running": "3x400", "generated": "500x400", "prompts": "500x400"}),
        ("SpecserveServerRestarts", "16m", {"generated": f"{'0 500 1000 ' * 5}0 9"}),
        ("SpecserveDraftPositionsWasted", "200m",
         {"drafts": "0+600x400", "accepted": "0+1500x400", "last": "0+6x400"}),
        ("SpecservePreemptions", "30m", {"preemptions": "0+60x400", "usage": "0.97x400"}),
    ],
)  # fmt: skip
def test_an_alert_is_raised_by_its_fault_and_not_without(
    alert: str, at: str, series: dict[str, str], tmp_path: Path
) -> None:
    assert is_raised(alert, SHIPPED, of_server(**series), at=at, folder=tmp_path)
    well = {**WELL, "last": "0+200x400", "running": "3x400", "preemptions": "0x400", "usage": "0.5x400"}
    few = {"drafts": "0+10x400", "accepted": "0x400"}
    for quiet in (well, few):
        assert not is_raised(alert, SHIPPED, of_server(**quiet), at=at, folder=tmp_path)


@promtool
def test_a_missed_promise_and_missing_speculation_are_raised(profile: MakeProfile, tmp_path: Path) -> None:
    text = rules_of(profile(PROMISING))
    poor = {**WELL, "accepted": "0+600x400", "drafted": "0+2400x400"}
    off = {"generated": "0+2100x400", "prompts": "0+900x400"}
    for alert, series in (("SpecservePromiseMissed", poor), ("SpecserveSpeculationMissing", off)):
        assert is_raised(alert, text, of_server(**series), at="40m", folder=tmp_path)
        assert not is_raised(alert, text, of_server(**WELL), at="40m", folder=tmp_path)


def of_canary(profile: MakeProfile, *, canary_k: int = 4) -> str:
    """The rules for the canary of a profile whose model is `m`, with K = 4."""
    text = "server: {{served_model_name: m}}\nspeculation: {{method: ngram, num_speculative_tokens: {}}}"
    groups = canary_alerts(*(profile(text.format(k)) for k in (4, canary_k)))
    return yaml.safe_dump({"groups": groups}, width=10_000)


def test_a_canarys_alerts_name_what_vllm_exports_and_both_servers(profile: MakeProfile) -> None:
    found = rules(of_canary(profile))
    assert [rule["labels"].get("figure") for rule in found] == ["acceptance", "tpot", "errors", None]
    for rule in found:
        assert exported(rule["expr"])
        canary, main = (f'model_name="m",specserve_pool="{pool}"' for pool in ("canary", "main"))
        assert rule["expr"].count(canary) == rule["expr"].count(main) > 0
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["annotations"]["summary"].count("$labels.model_name") == 1
    found = rules(of_canary(profile, canary_k=2))  # whose acceptance is another thing
    assert [rule["labels"].get("figure") for rule in found] == ["tpot", "errors", None]
    assert not any("accepted" in rule["expr"] for rule in found)


@promtool
def test_a_canarys_alerts_are_raised_by_what_they_say(profile: MakeProfile, tmp_path: Path) -> None:
    def traffic(
        pool: str, *, accepted: float = 600, tpot_s: float = 0.6, failed: float = 0
    ) -> dict[str, str]:
        labels = f'specserve_pool="{pool}",instance="{pool}:8000",model_name="m",engine="0"'
        series = {
            f"spec_decode_num_draft_tokens_total{{{labels}}}": 1000,
            f"spec_decode_num_accepted_tokens_total{{{labels}}}": accepted,
            f"request_time_per_output_token_seconds_sum{{{labels}}}": tpot_s,
            f"request_time_per_output_token_seconds_count{{{labels}}}": 20,
            f'request_success_total{{{labels},finished_reason="stop"}}': 20 - failed,
            f'request_success_total{{{labels},finished_reason="error"}}': failed,
        }
        return {name: f"0+{step}x300" for name, step in series.items()}

    def raised(**of_the_canary: float) -> set[str]:
        series = {**traffic("canary", **of_the_canary), **traffic("main")}
        asked = {key: f'SpecserveCanaryRollBack,figure="{key}"' for key in ("acceptance", "tpot", "errors")}
        asked["promote"] = "SpecserveCanaryPromote"
        text = of_canary(profile)
        return {
            key for key, alert in asked.items() if is_raised(alert, text, series, at="240m", folder=tmp_path)
        }

    assert raised() == {"promote"}
    assert raised(accepted=300) == {"acceptance"}
    assert raised(tpot_s=0.7) == {"tpot"}
    assert raised(failed=1) == {"errors"}


def test_the_manual_names_every_alert(profile: MakeProfile) -> None:
    manual = (ROOT / "docs" / "watch.md").read_text(encoding="utf-8")
    found = [*rules(rules_of(profile(PROMISING))), *rules(of_canary(profile))]
    alerts = {rule["alert"] for rule in found if "alert" in rule}
    assert {alert for alert in alerts if alert not in manual} == set()
