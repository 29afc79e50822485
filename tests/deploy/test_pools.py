"""Several pools behind one address: which requests reach which, by the Gateway API and by the proxy itself."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from specserve.cli.commands import run
from specserve.deploy.deployment import Canary, Deployment
from specserve.deploy.targets import caveats, with_canary
from specserve.errors import SpecserveError, UsageError
from specserve.hardware.host import free_port
from tests.deploy.conftest import ROOT, files_of, made_of, objects_of
from tests.deploy.schema import compose_problems, kubernetes_problems

LLAMA = ROOT / "configs" / "llama70b-8b.yaml"
CADDY = Path(sys.executable).with_name("caddy")


def components(made: Deployment) -> dict[str, Any]:
    files = files_of("kubernetes", made)
    return objects_of({path: text for path, text in files.items() if "kustomization" not in path})


def test_every_object_is_one_that_an_api_server_takes(pools: Deployment) -> None:
    problems = {name: kubernetes_problems(document) for name, document in components(pools).items()}
    assert not any(problems.values()), problems
    route = components(pools)["components/routes/HTTPRoute/pools"]
    route["spec"]["rules"][0]["weight"] = 1
    assert kubernetes_problems(route)
    assert compose_problems(yaml.safe_load(files_of("compose", pools)["compose.yaml"])) == []


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


def test_the_rule_for_the_adapter_makes_every_metric_of_the_autoscaler(pools: Deployment) -> None:
    text = files_of("kubernetes", pools)["components/autoscaling/autoscaler.yaml"]
    lines = [line[4:] for line in text.splitlines() if line.startswith(("  # - ", "  #   "))]
    (rule,) = yaml.safe_load("\n".join(lines))
    series = re.search(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    assert series is not None
    names = ["vllm:num_requests_waiting"]
    assert all(re.search(series[1], name) for name in names)
    made = [
        re.sub(rule["name"]["matches"], rule["name"]["as"].replace("${1}", r"\1"), name) for name in names
    ]
    assert made == [one["pods"]["metric"]["name"] for one in yaml.safe_load(text)["spec"]["metrics"]]


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


def test_prometheus_reads_every_server_of_compose_and_has_the_alerts_of_the_canary(pools: Deployment) -> None:
    files = files_of("compose", pools)
    jobs = yaml.safe_load(files["prometheus/prometheus.yml"])["scrape_configs"]
    found = {job["job_name"]: job["static_configs"][0] for job in jobs}
    hosts = {name: one["targets"] for name, one in found.items()}
    assert hosts == {
        "pools": ["vllm:8000"],
        "pools-canary": ["vllm-canary:8000"],
    }
    assert hosts.keys() == {name.replace("vllm", "pools") for name in yaml.safe_load(files["compose.yaml"])["services"]
                            if name.startswith("vllm")}  # fmt: skip
    assert {one["labels"]["specserve_pool"] for one in found.values()} == {"main", "canary"}
    assert len({one["labels"]["fingerprint"] for one in found.values()}) == 2
    groups = yaml.safe_load(files["prometheus/specserve.rules.yml"])["groups"]
    (canary,) = [group for group in groups if group["name"].startswith("specserve-canary-")]
    assert canary["rules"][-1]["alert"] == "SpecserveCanaryPromote"


def test_prometheus_alone_compares_two_servers_of_this_host(pools: Deployment) -> None:
    files = files_of("monitoring", pools)
    jobs = yaml.safe_load(files["prometheus/prometheus.yml"])["scrape_configs"]
    found = [job["static_configs"][0] for job in jobs]
    assert [one["targets"] for one in found] == [["127.0.0.1:8000"], ["127.0.0.1:8001"]]
    assert [one["labels"]["specserve_pool"] for one in found] == ["main", "canary"]
    groups = yaml.safe_load(files["prometheus/specserve.rules.yml"])["groups"]
    assert [rule["alert"] for rule in groups[-1]["rules"]][-1] == "SpecserveCanaryPromote"


def test_every_claim_that_a_pod_mounts_is_rendered() -> None:
    settings = (
        "target.model=/models/70b",
        "speculation.model=/models/8b",
        'alternatives.eagle={"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}',
    )
    canary = Canary("eagle", 10, made_of(LLAMA, *settings, alternative="eagle"))
    found = components(replace(made_of(LLAMA, *settings), canary=canary))

    def claims(pool: str) -> tuple[set[str], set[str]]:
        """Those that the pods of a pool mount, and those that are rendered with it."""
        objects = [one for path, one in found.items() if path.rpartition("/")[0].rpartition("/")[0] == pool]
        deployment = next(one for one in objects if one["kind"] == "Deployment")
        volumes = deployment["spec"]["template"]["spec"]["volumes"]
        mounted = {
            one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one
        }
        return mounted, {one["metadata"]["name"] for one in objects if one["kind"] == "PersistentVolumeClaim"}

    mounted, rendered = claims("")
    assert mounted == rendered == {"llama70b-8b-models"}
    added, own = claims("components/canary")
    assert added == {"llama70b-8b-models", "llama70b-8b-cache"} and own == {"llama70b-8b-cache"}


def test_pods_on_other_nodes_share_the_claims(pools: Deployment) -> None:
    files = files_of("kubernetes", pools)
    patched = {path.split("/")[1] for path, text in files.items() if "accessModes" in text and "/" in path}
    assert patched == {"autoscaling", "canary"}


def test_without_the_options_there_is_one_pool(llama: Deployment) -> None:
    files = files_of("kubernetes", llama)
    assert {path.split("/")[1] for path in files if "/" in path} == {"monitoring", "autoscaling"}
    assert "proxy" not in yaml.safe_load(files_of("compose", llama)["compose.yaml"])["services"]


def test_pools_of_one_host_have_accelerators_and_ports_of_their_own(pools: Deployment) -> None:
    services = yaml.safe_load(files_of("compose", pools)["compose.yaml"])["services"]
    servers = [services[name] for name in ("vllm", "vllm-canary")]
    ids = [one["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for one in servers]
    assert ids == [["0", "1", "2", "3"], ["4", "5", "6", "7"]]
    assert [one["ports"] for one in servers] == [[f"127.0.0.1:{8001 + at}:8000"] for at in range(2)]
    assert services["proxy"]["ports"] == ["127.0.0.1:8000:8000"]
    named = replace(made_of(LLAMA, "hardware.devices=[0,1,2,3]"), canary=pools.canary)
    with pytest.raises(UsageError, match=r"`hardware\.devices` names the GPUs of one server"):
        files_of("compose", named)


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
        (("--to", "systemd", "--canary", "baseline=5%"), "`--canary` is for `--to kubernetes` and `--to compose`"),
        (("--to", "kubernetes", "--canary", "none=10%"), "none"),
        (("--to", "kubernetes", "--canary", "baseline=5%", "--set", "hardware.nodes=2",
          "--set", "target.pipeline_parallel_size=2"), "on one node"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(SpecserveError, match=said):
        run(["render", str(LLAMA), *arguments])


@contextlib.contextmanager
def answering(name: str, seen: Counter[str]) -> Iterator[int]:
    """A server that counts its requests, and streams two lines half a second apart."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            seen[name] += 1
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for line in (b"data: 1\n\n", b"data: 2\n\n"):
                self.wfile.write(line)
                self.wfile.flush()
                time.sleep(0.5 if "slow" in self.path else 0)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def proxied(pools: Deployment, tmp_path: Path) -> Iterator[tuple[str, Counter[str]]]:
    """The rendered proxy before both servers: its address, and who was asked how often."""
    seen: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        text = files_of("compose", pools)["proxy/Caddyfile"]
        for name in ("vllm-canary", "vllm"):
            text = text.replace(f"{name}:8000", f"127.0.0.1:{stack.enter_context(answering(name, seen))}")
        port = free_port()
        (tmp_path / "Caddyfile").write_text(text.replace(":8000 {", f"http://127.0.0.1:{port} {{"))
        process = stack.enter_context(
            subprocess.Popen(
                [CADDY, "run", "--config", tmp_path / "Caddyfile"],
                env={"HOME": str(tmp_path)},
                stderr=stack.enter_context((tmp_path / "log").open("w")),
            )
        )
        stack.callback(process.terminate)
        url = f"http://127.0.0.1:{port}"
        end_s = time.monotonic() + 60
        while not seen:
            assert process.poll() is None and time.monotonic() < end_s, (tmp_path / "log").read_text()
            with contextlib.suppress(httpx.TransportError):
                httpx.post(f"{url}/ready", content=b"", timeout=20)
            time.sleep(0.1)
        seen.clear()
        yield url, seen


def test_the_proxy_shares_requests_by_weight(proxied: tuple[str, Counter[str]]) -> None:
    url, seen = proxied
    with httpx.Client(timeout=60) as client:
        for _ in range(40):
            client.post(f"{url}/v1/completions", content=b"{}").raise_for_status()
        assert seen == {"vllm": 36, "vllm-canary": 4}


def test_the_proxy_passes_a_stream_on_as_it_comes(proxied: tuple[str, Counter[str]]) -> None:
    url, _ = proxied
    with httpx.stream("POST", f"{url}/slow", content=b"{}", timeout=60) as answer:
        times = [(time.monotonic(), chunk) for chunk in answer.iter_bytes() if chunk]
    assert [chunk for _, chunk in times] == [b"data: 1\n\n", b"data: 2\n\n"]
    assert times[1][0] - times[0][0] > 0.2
