"""systemd: one unit per node, which waits until vLLM answers and may touch little."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from specserve.deploy.deployment import Artifact, Deployment, in_one_line, staging
from specserve.errors import CONTROL
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.plan.nodes import leader_at, value_at

PROGRAM = "/opt/vllm/bin/vllm"
_MODELS = "/srv/models"
_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_HARDENING = """\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
LockPersonality=yes
SystemCallArchitectures=native
CapabilityBoundingSet=
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
UMask=0077"""
_GPUS = "# not PrivateDevices: the GPUs are devices; not MemoryDenyWriteExecute: vLLM compiles"


def systemd(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Return the unit, or one per node."""
    if made.nodes == 1:
        return (_unit(made, made.plan, name=made.name),)
    return tuple(
        _unit(made, plan, name=f"{made.name}-node{rank}") for rank, plan in enumerate(made.ranks)
    )


def _unit(made: Deployment, plan: LaunchPlan, *, name: str) -> Artifact:
    node = f", node {plan.node_rank} of {made.nodes}" if made.nodes > 1 else ""
    words = [_word(word) for word in plan.argv]
    words[value_at(plan, "host")] = _word(made.host)
    leader = leader_at(plan, made.profile)
    if leader is not None:
        words[leader] = "${MASTER_ADDR}"
    hf = PROGRAM.replace("/vllm/bin/vllm", "/vllm/bin/hf")
    staged = [
        f"/usr/bin/env HF_HUB_OFFLINE=0 {hf} {' '.join(map(_word, staging(one)[1:]))}"
        for one in made.downloads
    ]
    lines = [
        _comment(made, plan, name=name),
        "[Unit]",
        f"Description={_specifier(in_one_line(f'vLLM: {made.profile.name}{node}'))}",
        "Wants=network-online.target",
        "After=network-online.target nvidia-persistenced.service",
        "# no endless loop of starts that load for minutes and fail",
        f"StartLimitIntervalSec={4 * made.start_limit_s}",
        "StartLimitBurst=3",
        "",
        "[Service]",
        "Type=exec",
        "DynamicUser=yes",
        f"CacheDirectory={name}",
        f"WorkingDirectory={_MODELS if made.mounts else f'%C/{name}'}",
        "# nvcc and ninja, with which vLLM compiles kernels",
        f"Environment=PATH={Path(PROGRAM).parent}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
        *_environment(made, plan, name=name),
        *(f"ExecStartPre={command}" for command in staged),
        f"ExecStart={PROGRAM} {' '.join(words[1:])}",
        *([f"ExecStartPost=/bin/sh -c {_word(_wait(made))}"] if plan.answers else []),
        f"# {made.start_limit_s // 60} minutes: {made.start_limit_from}",
        f"TimeoutStartSec={made.start_limit_s}",
        "# vLLM drains its requests only if its workers do not get the signal too",
        "KillMode=mixed",
        f"TimeoutStopSec={made.grace_s}",
        "# always, not on-failure: vLLM ends with code 0 even if its engine was killed",
        "Restart=always",
        "RestartSec=10",
        "OOMPolicy=stop",
        "LimitNOFILE=65536",
        "LimitMEMLOCK=infinity",
        "LimitCORE=0",
        _HARDENING,
        "PrivateDevices=yes" if made.is_cpu else _GPUS,
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return Artifact(f"{name}.service", "\n".join(lines) + "\n")


def _comment(made: Deployment, plan: LaunchPlan, *, name: str) -> str:
    lines = [
        *made.head.split("\n"),
        "",
        f"sudo cp {name}.service /etc/systemd/system/ && sudo systemctl daemon-reload",
        f"sudo systemctl enable --now {name}",
        "Needs curl, and vLLM in /opt/vllm: a virtual environment, or a symbolic link to one",
    ]
    if made.mounts:
        lines.append(f"{_MODELS} must hold {made.mounted}")
    if leader_at(plan, made.profile) is not None:
        lines.append(f"/etc/specserve/{name}.env must hold MASTER_ADDR, the address of node 0")
    return "\n".join(f"# {in_one_line(line)}".rstrip() for line in lines) + "\n"


def _environment(made: Deployment, plan: LaunchPlan, *, name: str) -> list[str]:
    """The variables; those that are secret come from a file that root alone can read."""
    variables = {key: value for key, value in plan.env.items() if isinstance(value, str)}
    if made.devices and not made.is_cpu:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, made.devices))
    lines = [f"Environment=HOME=%C/{name}", f"Environment=HF_HOME=%C/{name}/huggingface"]
    lines += [
        f"Environment={_word(f'{key}={value}', dollar=False)}" for key, value in variables.items()
    ]
    if made.downloads and made.may_be_offline:
        lines.append("Environment=HF_HUB_OFFLINE=1")
    secrets = {key: value.name for key, value in plan.env.items() if isinstance(value, FromEnv)}
    wanted = ["HF_TOKEN=… for gated models"] if made.downloads else []
    wanted += [f"{key}=… (the profile's {variable})" for key, variable in secrets.items()]
    wanted += ["MASTER_ADDR=…"] if leader_at(plan, made.profile) is not None else []
    if wanted:
        optional = "" if secrets or made.nodes > 1 else "-"
        lines += [f"# root's alone (chmod 600), one per line: {'; '.join(wanted)}"]
        lines += [f"EnvironmentFile={optional}/etc/specserve/{name}.env"]
    return lines


def _wait(made: Deployment) -> str:
    """A script by which `systemctl start` returns when the server answers or has died."""
    url = shlex.quote(f"{made.scheme}://{made.reached_host}:{made.plan.port}/health")
    insecure = " -k" if made.scheme == "https" else ""
    ask = f"curl -fsS{insecure} -m 5 -o /dev/null {url} 2>/dev/null"
    return f"while kill -0 $MAINPID; do {ask} && exit 0; sleep 2; done; exit 1"


def _word(text: str, *, dollar: bool = True) -> str:
    """One word of a unit: systemd knows quotes, escapes, `%` and, in commands, `$`."""
    escaped = _specifier(text).replace("$", "$$") if dollar else _specifier(text)
    if _SAFE.fullmatch(escaped):
        return escaped
    inner = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", inner) + '"'


def _specifier(text: str) -> str:
    return text.replace("%", "%%")
