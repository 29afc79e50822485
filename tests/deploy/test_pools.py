"""Several pools behind one address: which requests reach which, by the Gateway API and by the proxy itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from specserve.cli.commands import run
from specserve.deploy.deployment import Canary, Deployment
from specserve.deploy.targets import caveats, with_canary
from specserve.errors import SpecserveError, UsageError
from tests.deploy.conftest import ROOT, files_of, made_of, objects_of
from tests.deploy.schema import kubernetes_problems

LLAMA = ROOT / "configs" / "llama70b-8b.yaml"


def components(made: Deployment) -> dict[str, Any]:
    files = files_of("kubernetes", made)
    return objects_of({path: text for path, text in files.items() if "kustomization" not in path})


def test_every_object_is_one_that_an_api_server_takes(pools: Deployment) -> None:
    problems = {name: kubernetes_problems(document) for name, document in components(pools).items()}
    assert not any(problems.values()), problems
    route = components(pools)["components/routes/HTTPRoute/pools"]
    route["spec"]["rules"][0]["weight"] = 1
    assert kubernetes_problems(route)


def test_each_pool_has_pods_a_service_and_series_of_its_own(pools: Deployment) -> None:
    found = components(pools)
    pods = {}
    for kind, folder in (("main", ""), ("canary", "components/canary/")):
        name = "pools" if kind == "main" else f"pools-{kind}"
        deployment = found[f"{folder}Deployment/{name}"]["spec"]
        service = found[f"{folder}Service/{name}"]["spec"]
        assert service["selector"] == deployment["selector"]["matchLabels"]
        assert service["selector"]["specserve/pool"] == kind
        pods[kind] = deployment["template"]["spec"]["containers"][0]["args"]
    assert '"method": "draft_model"' in " ".join(pods["main"])
    assert '"method": "eagle3"' in " ".join(pods["canary"])


def test_every_model_that_is_downloaded_is_counted_as_not_pinned(pools: Deployment) -> None:
    assert any("note: 3 models are not pinned" in line for line in caveats(pools, "kubernetes"))


def test_the_series_of_a_pool_can_be_told_from_others(pools: Deployment) -> None:
    found = components(pools)

    def endpoint(path: str) -> dict[str, Any]:
        endpoints: list[dict[str, Any]] = found[f"components/{path}"]["spec"]["podMetricsEndpoints"]
        return endpoints[0]

    for path, pool in (
        ("monitoring/PodMonitor/pools", "main"),
        ("canary-monitoring/PodMonitor/pools-canary", "canary"),
    ):
        assert endpoint(path)["relabelings"] == [{"targetLabel": "specserve_pool", "replacement": pool}]
    rules = found["components/canary-monitoring/PrometheusRule/pools-canary"]["spec"]["groups"][0]["rules"]
    analysis = found["components/canary-analysis/AnalysisTemplate/pools-canary"]["spec"]["metrics"]
    for text in (
        *(rule["expr"] for rule in rules),
        *(one["provider"]["prometheus"]["query"] for one in analysis),
    ):
        assert 'specserve_pool="canary"' in text
    assert {rule["alert"] for rule in rules} == {"SpecserveCanaryRollBack", "SpecserveCanaryPromote"}
    assert [one["name"] for one in analysis] == ["tpot", "errors"]  # another K


def test_prometheus_alone_compares_two_servers_of_this_host(pools: Deployment) -> None:
    files = files_of("monitoring", pools)
    jobs = yaml.safe_load(files["prometheus.yml"])["scrape_configs"]
    found = [job["static_configs"][0] for job in jobs]
    assert [one["targets"] for one in found] == [["127.0.0.1:8000"], ["127.0.0.1:8001"]]
    assert [one["labels"]["specserve_pool"] for one in found] == ["main", "canary"]
    groups = yaml.safe_load(files["specserve.rules.yml"])["groups"]
    assert [rule["alert"] for rule in groups[-1]["rules"]][-1] == "SpecserveCanaryPromote"


def test_every_claim_that_a_pod_mounts_is_rendered() -> None:
    settings = (
        "target.model=/models/70b",
        "speculation.model=/models/8b",
        'alternatives.eagle={"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}',
    )
    canary = Canary("eagle", 10, made_of(LLAMA, *settings, alternative="eagle"))
    found = components(replace(made_of(LLAMA, *settings), canary=canary))

    claims = {path.rpartition("/")[2] for path in found if path.startswith("PersistentVolumeClaim/")}
    assert claims == {"llama70b-8b-models", "llama70b-8b-cache"}
    assert "components/canary/PersistentVolumeClaim" not in " ".join(found)
    for path in ("Deployment/llama70b-8b", "components/canary/Deployment/llama70b-8b-canary"):
        volumes = found[path]["spec"]["template"]["spec"]["volumes"]
        mounted = [
            one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one
        ]
        assert {*mounted} == claims


@pytest.mark.parametrize("text", ["x=0%", "x=100%", "x", "=10%", "x=10", "x=-5%", "x=ten%", ""])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    made = made_of(LLAMA)
    with pytest.raises(UsageError, match="must be the name of an alternative and its share"):
        with_canary(made, text, lambda _: made)
    canary = with_canary(made, "a=b=7%", lambda _: made).canary
    assert canary is not None and (canary.alternative, canary.percent) == ("a=b", 7)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "systemd", "--canary", "baseline=5%"), "`--canary` is for `--to kubernetes` and"),
        (("--to", "kubernetes", "--canary", "none=10%"), "none"),
        (("--to", "kubernetes", "--canary", "baseline=5%", "--set", "hardware.nodes=2",
          "--set", "target.pipeline_parallel_size=2"), "for one node"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(SpecserveError, match=said):
        run(["render", str(LLAMA), *arguments])
