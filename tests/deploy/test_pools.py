"""Several pools behind one address: which requests reach which, by the Gateway API and by the proxy itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from specserve.cli.commands import run
from specserve.deploy.deployment import Deployment
from specserve.deploy.targets import caveats, with_canary
from specserve.errors import SpecserveError, UsageError
from tests.deploy.conftest import LLAMA, files_of, kubernetes_problems, made_of, objects_of


def test_every_object_is_one_that_an_api_server_takes(pools: Deployment) -> None:
    problems = {name: kubernetes_problems(document) for name, document in objects_of(pools).items()}
    assert not any(problems.values()), problems
    route = objects_of(pools)["components/routes/HTTPRoute/pools"]
    route["spec"]["rules"][0]["weight"] = 1
    assert kubernetes_problems(route)


def test_each_pool_has_pods_a_service_and_models_of_its_own(pools: Deployment) -> None:
    found = objects_of(pools)
    for pool, path, method in (
        ("main", "{}/pools", "draft_model"),
        ("canary", "components/canary/{}/pools-canary", "eagle3"),
    ):
        deployment, service = (found[path.format(kind)]["spec"] for kind in ("Deployment", "Service"))
        assert service["selector"] == deployment["selector"]["matchLabels"]
        assert service["selector"]["specserve/pool"] == pool
        words = deployment["template"]["spec"]["containers"][0]["args"]
        assert f'"method": "{method}"' in " ".join(words)


def test_every_model_that_is_downloaded_is_counted_as_not_pinned(pools: Deployment) -> None:
    assert any("note: 3 models are not pinned" in line for line in caveats(pools, "kubernetes"))


def test_the_series_of_a_pool_can_be_told_from_others(pools: Deployment) -> None:
    found = {path.removeprefix("components/"): one["spec"] for path, one in objects_of(pools).items()}
    for path, pool in (
        ("monitoring/PodMonitor/pools", "main"),
        ("canary-monitoring/PodMonitor/pools-canary", "canary"),
    ):
        (endpoint,) = found[path]["podMetricsEndpoints"]
        assert endpoint["relabelings"] == [{"targetLabel": "specserve_pool", "replacement": pool}]
    (group,) = found["canary-monitoring/PrometheusRule/pools-canary"]["groups"]
    metrics = found["canary-analysis/AnalysisTemplate/pools-canary"]["metrics"]
    queries = [one["provider"]["prometheus"]["query"] for one in metrics]
    asked = [*(rule["expr"] for rule in group["rules"]), *queries]
    assert all('specserve_pool="canary"' in text for text in asked)
    assert [one["name"] for one in metrics] == ["tpot", "errors"]  # another K


def test_prometheus_alone_compares_two_servers_of_this_host(pools: Deployment) -> None:
    files = files_of("monitoring", pools)
    jobs = yaml.safe_load(files["prometheus.yml"])["scrape_configs"]
    found = [job["static_configs"][0] for job in jobs]
    assert [one["targets"] for one in found] == [["127.0.0.1:8000"], ["127.0.0.1:8001"]]
    assert [one["labels"]["specserve_pool"] for one in found] == ["main", "canary"]


def test_every_claim_that_a_pod_mounts_is_rendered_once(pools: Deployment) -> None:
    made = made_of(LLAMA, "target.model=/models/70b", "speculation.model=/models/8b")
    found = objects_of(replace(made, canary=pools.canary and replace(pools.canary, made=made)))
    claims = {path.rpartition("/")[2] for path in found if "PersistentVolumeClaim/" in path}
    assert claims == {"llama70b-8b-models", "llama70b-8b-cache"}
    assert not any(path.startswith("components/canary/PersistentVolumeClaim") for path in found)
    for path in ("Deployment/llama70b-8b", "components/canary/Deployment/llama70b-8b-canary"):
        volumes = found[path]["spec"]["template"]["spec"]["volumes"]
        mounted = [one["persistentVolumeClaim"] for one in volumes if "persistentVolumeClaim" in one]
        assert {one["claimName"] for one in mounted} == claims


def test_a_share_is_of_1_to_99_percent() -> None:
    made = made_of(LLAMA)
    for text in ("x=0%", "x=100%", "x", "=10%", "x=10", "x=-5%", ""):
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
