"""Texts of a profile end in files of production: each target reads there what the plan says, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from specserve.cli.plan import RenderTarget
from specserve.deploy.deployment import Deployment, deployment, staging
from specserve.deploy.targets import TARGETS
from specserve.errors import ProfileError, UsageError
from specserve.profile.load import load_profile
from specserve.sglang.options import launch_sglang
from tests.deploy.conftest import LLAMA, ROOT, files_of, made_of

EAGLE3 = load_profile(str(ROOT / "configs" / "llama33-70b-eagle3.yaml"))


_SPLIT = re.compile(r"""\s*((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"'\\]|\\.)+)""", re.S)
_PART = re.compile(
    r"""(?P<quote>["'])|\\(?P<escape>u[0-9a-f]{4}|x[0-9a-f]{2}|[\\"'nts])|(?P<plain>[^\\])""", re.S
)
_ESCAPES = {"n": "\n", "t": "\t", "s": " "}


def systemd_words(text: str, *, variables: dict[str, str] | None) -> list[str]:
    """The words of a directive as systemd reads them: quotes, escapes as in C, specifiers, and variables in a command.

    Source: systemd 252, extract-word.c, escape.c, specifier.c, env-util.c (`replace_env_argv`), load-fragment.c.
    """
    words = []
    for found in _SPLIT.finditer(text):
        word, quote = "", ""
        assert found[1] != ";", "a second command"
        for part in _PART.finditer(found[1]):
            if part["quote"] and quote in ("", part["quote"]):
                quote = "" if quote else part["quote"]
            elif code := part["escape"]:
                word += chr(int(code[1:], 16)) if code[0] in "ux" else _ESCAPES.get(code, code)
            else:
                word += part[0]
        word = re.sub("%(.)", lambda found: {"%": "%", "C": "/var/cache"}[str(found[1])], word)
        if variables is not None:
            word = re.sub(
                r"\$(\$|\{\w+\})",
                lambda found: "$" if found[1] == "$" else variables[str(found[1])[1:-1]],
                word,
            )
        words.append(word)
    assert not text[found.end() :].strip(), f"systemd cannot read {text[found.end() :]!r}"
    return words


def kubernetes_text(text: str) -> str:
    """A text as Kubernetes passes it on, where it names no variable."""
    return re.sub(r"\$(.)", _replaced, text)


def compose_text(value: Any) -> Any:
    """A value as Compose passes it on, where it names no variable."""
    if isinstance(value, dict):
        return {key: compose_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [compose_text(item) for item in value]
    return re.sub(r"\$(.?)", _replaced, value) if isinstance(value, str) else value


def _replaced(found: re.Match[str]) -> str:
    assert found[1] == "$", f"a variable in {found.string!r}"
    return "$"


def texts_of(made: Deployment) -> dict[str, str]:
    """The variables that the profile itself sets."""
    return {name: value for name, value in made.profile.env.items() if isinstance(value, str)}


def staged_of(made: Deployment) -> list[list[str]]:
    return [staging(use) for use in made.downloads]


def read_by_systemd(unit: str, made: Deployment, *, plan: Any = None, leader: str = "") -> None:
    """Asserts that the words of a unit are those of the plan."""
    plan = plan or made.plan
    found: dict[str, list[str]] = {}
    for line in unit.split("\n"):
        assert not line.endswith("\\"), "a line that goes on"
        if line and line[0] not in "#;[":
            found.setdefault(line.partition("=")[0], []).append(line.partition("=")[2])
    argv = list(plan.argv)
    argv[argv.index("--host") + 1] = made.host
    if leader:
        argv[argv.index("--master-addr") + 1] = leader
    (start,) = found["ExecStart"]
    assert systemd_words(start, variables={"MASTER_ADDR": leader})[1:] == argv[1:]
    steps = [systemd_words(line, variables={})[3:] for line in found["ExecStartPre"]]
    assert steps == [words[1:] for words in staged_of(made)]
    (after,) = found["ExecStartPost"]
    shell, option, script = systemd_words(after, variables={})
    assert (shell, option) == ("/bin/sh", "-c") and script.startswith("while kill -0 $MAINPID; do curl -fsS")
    assert f"{made.scheme}://{made.address}/health" in shlex.split(script)
    lines = [systemd_words(line, variables=None) for line in found["Environment"]]
    variables = dict(word.partition("=")[::2] for (word,) in lines)
    assert variables.items() >= texts_of(made).items()


def read_staging(script: str, made: Deployment) -> None:
    """Asserts that a shell downloads each repository."""
    assert shlex.split(script) == [word for step in staged_of(made) for word in ("&&", *step)][1:]


def read_by_compose(text: str, made: Deployment) -> None:
    """Asserts that Compose starts what the plan says."""
    services = yaml.safe_load(text)["services"]
    for service in services.values():  # what is meant as a variable
        for name, value in list(service.get("environment", {}).items()):
            if re.fullmatch(r"\$\{(HF_TOKEN:-|API_KEY:\?the server's API key)\}", value):
                del service["environment"][name]
    services = compose_text(services)
    assert services["vllm"]["entrypoint"] + services["vllm"]["command"] == list(made.plan.argv)
    assert services["vllm"]["environment"].items() >= texts_of(made).items()
    volumes = [one for one in services["vllm"]["volumes"] if isinstance(one, dict)]
    assert [Path(one["target"]).name for one in volumes] == list(made.mounts)
    if made.downloads:
        (script,) = services["stage"]["command"]
        read_staging(script, made)


def read_by_kubernetes(text: str, made: Deployment) -> None:
    """Asserts that Kubernetes starts what the plan says."""
    spec = yaml.safe_load(text)["spec"]["template"]["spec"]
    (server,) = spec["containers"]
    assert [kubernetes_text(word) for word in server["command"] + server["args"]] == list(made.plan.argv)
    given = {one["name"]: kubernetes_text(one["value"]) for one in server["env"] if "value" in one}
    assert given.items() >= texts_of(made).items()
    for stage in spec.get("initContainers", ()):
        read_staging(kubernetes_text(stage["command"][-1]), made)


def read_by_prometheus(text: str, made: Deployment) -> None:
    """Asserts that the rules name the model, and no variable of a template."""
    for rule in [one for group in yaml.safe_load(text)["groups"] for one in group["rules"]]:
        if "model_name=" in rule["expr"]:
            (named,) = set(re.findall(r'model_name=("(?:[^"\\]|\\.)*")', rule["expr"]))
            assert "{{" not in named and json.loads(named.replace("\\x7b", "{")) == made.plan.model


def read_by_ray(text: str, made: Deployment) -> None:
    """Asserts that Ray builds the engine that the plan says."""
    (config,) = yaml.safe_load(text)["applications"][0]["args"]["llm_configs"]
    assert config["runtime_env"]["env_vars"].items() >= texts_of(made).items()
    overrides = made.profile.engine.get("hf_overrides")
    assert config["engine_kwargs"].get("hf_overrides") == overrides
    assert config["model_loading_config"]["model_id"] == made.plan.model


READERS: dict[str, tuple[str, Callable[[str, Deployment], None]]] = {
    "compose": ("compose.yaml", read_by_compose),
    "kubernetes": ("deployment.yaml", read_by_kubernetes),
    "monitoring": ("specserve.rules.yml", read_by_prometheus),
    "ray": ("serve.yaml", read_by_ray),
    "systemd": (".service", read_by_systemd),
}
"""By target: how the file ends that names the launch, and who reads it."""


def test_every_target_has_a_reader() -> None:
    # SGLang's script has a test of its own, which runs it
    assert {*READERS, "sglang"} == {*TARGETS} == {*get_args(RenderTarget)}


HOSTILE = [
    "plain", "{leader}", "{{args.x}}", "$(HOME)", "$$(HOME)", "$HOME", "${HOME}", "$$", "%h", "%%h", "x\\", "x\\x27",
    "'x\\x27; touch PWNED; \\x27'", '"; touch PWNED; "', '"\nExecStartPre=+/bin/false\nX="', "a\u2028b", "\t",
    "#x", ";", "---", "~", "yes", "0x1f", "1e3", ": ", "[x", "&a", "*a", "!t", "`id`", "a b", "--help", "-x", "ü🙂",
]  # fmt: skip
PLACES = {
    "name": "{}",
    "target.model": "/models/{}", "target.tokenizer": "org/{}", "target.revision": "{}", "speculation.model": "{}",
    "speculation.revision": "{}", "server.served_model_name": "{}", "server.host": "{}", "env.NOTE": "{}",
    "frontend.chat_template": "{}", "frontend.root_path": "{}", "frontend.allowed_origins": ["{}"],
    "engine.hf_overrides": {"{}": "{}"}, "hardware.devices": ["{}"],
}  # fmt: skip


def filled(form: Any, text: str) -> Any:
    if isinstance(form, dict):
        return {filled(key, text): filled(item, text) for key, item in form.items()}
    return [filled(one, text) for one in form] if isinstance(form, list) else form.replace("{}", text)


def hostile(text: str, *more: str) -> tuple[Deployment, list[str]]:
    """The shipped profile with this text wherever a profile takes it, and the places that do."""
    settings: list[str] = ["server.api_key_env=API_KEY"]
    taken = []
    for place, form in PLACES.items():
        written = json.dumps(filled(form, text), ensure_ascii=False)
        setting = f"{place}={written}".replace("\u2028", "\\u2028")
        try:
            made_of(LLAMA, setting)
        except (ProfileError, UsageError):
            continue
        settings.append(setting)
        taken.append(place)
    return made_of(LLAMA, *settings, *more), taken


@pytest.mark.parametrize("text", HOSTILE)
def test_each_target_reads_the_words_of_the_plan(text: str) -> None:
    made, taken = hostile(text)
    assert {"env.NOTE", "frontend.chat_template"} <= set(taken) and made.plan.env["NOTE"] == text
    (unit,) = files_of("systemd", made).values()
    plain = files_of("systemd", hostile("x")[0]).values()
    keys = [{line.partition("=")[0] for line in one.split("\n") if line[:1] != "#"} for one in (unit, *plain)]
    assert keys[0] == keys[1]  # no section or directive more
    for target, (ending, read) in READERS.items():
        if target == "ray" and re.search(r"\$[\w{]", text):
            with pytest.raises(UsageError, match="Ray would replace"):
                files_of(target, made)
            continue
        (file,) = (file for path, file in files_of(target, made).items() if path.endswith(ending))
        read(file, made)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_a_command_of_sglangs_script(text: str, tmp_path: Path) -> None:
    server = replace(EAGLE3.server, served_model_name=text)
    target = replace(EAGLE3.target, model=f"/models/{text.replace('/', '_')}")
    profile = replace(EAGLE3, name=text, server=server, target=target, env={"NOTE": text})
    made = deployment(profile, version="0.33", platform="cuda")
    script = files_of("sglang", made)["launch.sh"]
    assert "# Run it in the folder that holds `" in script
    (tmp_path / "launch.sh").write_bytes(script.encode())
    program = tmp_path / "sglang"
    program.write_text('#!/bin/sh\nprintf \'%s\\0\' "$NOTE" "$@"\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", tmp_path / "launch.sh"], env=env, capture_output=True, check=True)
    launch = launch_sglang(replace(made.profile, server=replace(made.profile.server, host=made.host)))
    assert done.stdout.decode().split("\0")[:-1] == [text, *launch.argv[1:]]


TWO_NODES = ("hardware.nodes=2", "target.pipeline_parallel_size=2", "hardware.devices=~")


@pytest.mark.parametrize("text", ["{leader}", "${MASTER_ADDR}", "$(LWS_LEADER_ADDRESS)", "--master-addr"])
def test_the_address_of_node_0_stands_where_it_belongs_and_nowhere_else(text: str) -> None:
    made, _ = hostile(text, *TWO_NODES)
    files = files_of("systemd", made)
    read_by_systemd(files[f"{made.name}-node0.service"], made, plan=made.ranks[0], leader="10.0.0.1")
    group = yaml.safe_load(files_of("kubernetes", made)["leaderworkerset.yaml"])["spec"]
    for kind, plan in zip(("leaderTemplate", "workerTemplate"), made.ranks, strict=True):
        (server,) = group["leaderWorkerTemplate"][kind]["spec"]["containers"]
        words, wanted = server["command"] + server["args"], list(plan.argv)
        for flag, variable in (("--master-addr", "LEADER_ADDRESS"), ("--node-rank", "WORKER_INDEX")):
            at = wanted.index(flag) + 1
            if kind == "workerTemplate" or variable == "LEADER_ADDRESS":
                assert words[at] == f"$(LWS_{variable})"
                words[at] = wanted[at]
        assert [kubernetes_text(word) for word in words] == wanted


def test_an_address_that_the_profile_names_stays() -> None:
    made, _ = hostile("x", *TWO_NODES, "engine.master_addr='{leader}'")
    (first, _) = files_of("systemd", made).values()
    read_by_systemd(first, made, plan=made.ranks[0])
    assert "MASTER_ADDR" not in first
