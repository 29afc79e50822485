"""What the real tools say of rendered files: kustomize, systemd; skipped by name where one is not there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from specserve.deploy.deployment import Deployment
from tests.deploy.conftest import LLAMA, ROOT, files_of, made_of


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def written(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("which", ["one", "several", "pools"])
def test_kustomize_builds_the_server_and_every_component(
    which: str, llama: Deployment, two_nodes: Deployment, pools: Deployment, tmp_path: Path
) -> None:
    kubectl, several = tool("kubectl"), which == "several"
    files = files_of("kubernetes", {"one": llama, "several": two_nodes, "pools": pools}[which])
    folder = written(tmp_path / "base", files)
    alone = run(kubectl, "kustomize", str(folder))
    assert alone.returncode == 0, alone.stderr
    kinds = {document["kind"] for document in yaml.safe_load_all(alone.stdout)}
    workload = "LeaderWorkerSet" if several else "Deployment"
    assert kinds == {workload, "Service", "NetworkPolicy", "PersistentVolumeClaim"}
    components = sorted({path.split("/")[1] for path in files if path.startswith("components/")})
    overlay = {"resources": ["../base"], "components": [f"../base/components/{name}" for name in components]}
    written(tmp_path, {"all/kustomization.yaml": yaml.safe_dump(overlay)})
    everything = run(kubectl, "kustomize", str(tmp_path / "all"))
    assert everything.returncode == 0, everything.stderr
    documents = list(yaml.safe_load_all(everything.stdout))
    kinds = {document["kind"] for document in documents}
    assert kinds >= {"PodMonitor", "PrometheusRule"}
    assert ({"HTTPRoute", "AnalysisTemplate"} <= kinds) == (which == "pools")
    claims = [document for document in documents if document["kind"] == "PersistentVolumeClaim"]
    mode = "ReadWriteOnce" if which == "one" else "ReadWriteMany"  # pods on several nodes
    assert [claim["spec"]["accessModes"] for claim in claims] == [[mode]]


def test_kustomize_applies_every_patch_that_the_manual_shows(pools: Deployment, tmp_path: Path) -> None:
    kubectl = tool("kubectl")
    text = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
    own = text.partition("# deploy/prod/kustomization.yaml\n")[2].partition("```")[0]
    own = own.replace("components/monitoring]", "components/monitoring, ../llama/components/routes]")
    written(tmp_path / "llama", files_of("kubernetes", pools))
    done = run(kubectl, "kustomize", str(written(tmp_path / "prod", {"kustomization.yaml": own})))
    assert done.returncode == 0, done.stderr
    found = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    pod = found["Deployment"]["spec"]["template"]["spec"]
    requests = pod["containers"][0]["resources"]["requests"]
    assert (list(pod["nodeSelector"]), requests["memory"]) == (["nvidia.com/gpu.product"], "160Gi")
    assert (requests["cpu"], len(pod["containers"])) == ("10", 1)
    assert len(found["NetworkPolicy"]["spec"]["ingress"][0]["from"]) == 3
    assert found["HTTPRoute"]["spec"]["parentRefs"] == [{"name": "my-gateway", "namespace": "gateways"}]
    for kind in ("PodMonitor", "PrometheusRule"):
        labels = found[kind]["metadata"]["labels"]
        assert (labels["release"], labels["specserve/pool"]) == ("kube-prometheus-stack", "main")


def test_systemd_verifies_every_unit(
    demo: Deployment, llama: Deployment, two_nodes: Deployment, tmp_path: Path
) -> None:
    analyze = tool("systemd-analyze")
    odd = made_of(LLAMA, "name=odd", 'server.served_model_name=a "b" %h $HOME')
    units = []
    for made in (demo, llama, two_nodes, odd):
        for name, text in files_of("systemd", made).items():
            # verify looks for the program, which is installed elsewhere
            unit = text.replace("/opt/vllm/bin/vllm", "/bin/true").replace("/opt/vllm/bin/hf", "/bin/true")
            (tmp_path / name).write_text(unit)
            units.append(str(tmp_path / name))
    done = run(analyze, "verify", "--man=no", *units)
    assert (done.returncode, done.stderr) == (0, "")
