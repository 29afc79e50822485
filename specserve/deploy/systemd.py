"""systemd: one unit per node, which waits until vLLM answers and may touch little."""

from __future__ import annotations

import re
import shlex

from specserve.deploy.deployment import Artifact, Deployment, places, staging
from specserve.errors import CONTROL
from specserve.plan.launchplan import LaunchPlan, leader_at, value_at

_FOLDER = "/opt/vllm/bin"
_MODELS = "/srv/models"
_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_UNIT = """\
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target nvidia-persistenced.service
# no endless loop of starts that load for minutes and fail
StartLimitIntervalSec={window_s}
StartLimitBurst=3

[Service]
Type=exec
DynamicUser=yes
CacheDirectory={name}
WorkingDirectory={folder}
# nvcc and ninja, with which vLLM compiles kernels
Environment=PATH={path}
{commands}
# {limit_from}
TimeoutStartSec={limit_s}
# vLLM drains its requests only if its workers do not get the signal too
KillMode=mixed
TimeoutStopSec={grace_s}
# always, not on-failure: vLLM ends with code 0 even if its engine was killed
Restart=always
RestartSec=10
OOMPolicy=stop
LimitNOFILE=65536
LimitMEMLOCK=infinity
LimitCORE=0
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
UMask=0077
{devices}

[Install]
WantedBy=multi-user.target
"""
_GPUS = "# not PrivateDevices: the GPUs are devices; not MemoryDenyWriteExecute: vLLM compiles"


def systemd(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Return the unit, or one per node."""
    if made.nodes == 1:
        return (_unit(made, made.plan, made.name),)
    nodes = enumerate(made.ranks)
    return tuple(_unit(made, plan, f"{made.name}-node{rank}") for rank, plan in nodes)


def _unit(made: Deployment, plan: LaunchPlan, name: str) -> Artifact:
    node = f", node {plan.node_rank} of {made.nodes}" if made.nodes > 1 else ""
    needs = [
        *(made.head.split("\n")),
        "",
        f"sudo cp {name}.service /etc/systemd/system/ && sudo systemctl daemon-reload",
        f"sudo systemctl enable --now {name}",
        "Needs curl, and vLLM in /opt/vllm: a virtual environment, or a symbolic link to one",
    ]
    if made.mounts:
        needs.append(f"{_MODELS} must hold {made.mounted}")
    if leader_at(plan, made.profile) is not None:
        needs.append(f"/etc/specserve/{name}.env must hold MASTER_ADDR, the address of node 0")
    text = _UNIT.format(
        description=_in_one_line(f"vLLM: {made.profile.name}{node}").replace("%", "%%"),
        window_s=4 * made.start_limit_s,
        name=name,
        folder=_MODELS if made.mounts else f"%C/{name}",
        path=f"{_FOLDER}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
        commands="\n".join([*_environment(made, plan, name), *_commands(made, plan)]),
        limit_from=made.start_limit_from,
        limit_s=made.start_limit_s,
        grace_s=made.grace_s,
        devices="PrivateDevices=yes" if made.is_cpu else _GPUS,
    )
    head = "\n".join(f"# {_in_one_line(line)}".rstrip() for line in needs)
    return Artifact(f"{name}.service", f"{head}\n\n{text}")


def _environment(made: Deployment, plan: LaunchPlan, name: str) -> list[str]:
    """The variables; those that are secret come from a file that root alone can read."""
    variables = dict(made.variables)
    if made.devices and not made.is_cpu:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, made.devices))
    if made.downloads and made.may_be_offline:
        variables["HF_HUB_OFFLINE"] = "1"
    lines = [f"Environment={key}={place}" for key, place in places(f"%C/{name}").items()]
    lines += [f"Environment={_word(f'{key}={value}')}" for key, value in variables.items()]
    wanted = ["HF_TOKEN=… for gated models"] if made.downloads else []
    wanted += [f"{key}=… (the profile's {variable})" for key, variable in made.secrets.items()]
    wanted += ["MASTER_ADDR=…"] if leader_at(plan, made.profile) is not None else []
    if wanted:
        optional = "" if made.secrets or made.nodes > 1 else "-"
        lines += [f"# root's alone (chmod 600), one per line: {'; '.join(wanted)}"]
        lines += [f"EnvironmentFile={optional}/etc/specserve/{name}.env"]
    return lines


def _commands(made: Deployment, plan: LaunchPlan) -> list[str]:
    """What stages the models, what serves, and what returns when it answers or has died."""
    lines = []
    for use in made.downloads:
        words = ["HF_HUB_OFFLINE=0", f"{_FOLDER}/hf", *map(_argument, staging(use)[1:])]
        lines.append(f"ExecStartPre=/usr/bin/env {' '.join(words)}")
    words = [_argument(word) for word in plan.argv[1:]]
    words[value_at(plan, "host") - 1] = _argument(made.host)
    leader = leader_at(plan, made.profile)
    if leader is not None:
        words[leader - 1] = "${MASTER_ADDR}"
    lines.append(f"ExecStart={_FOLDER}/vllm {' '.join(words)}")
    if plan.answers:
        url = shlex.quote(f"{made.scheme}://{made.address}/health")
        insecure = " -k" if made.scheme == "https" else ""
        ask = f"curl -fsS{insecure} -m 5 -o /dev/null {url} 2>/dev/null"
        wait = f"while kill -0 $MAINPID; do {ask} && exit 0; sleep 2; done; exit 1"
        lines.append(f"ExecStartPost=/bin/sh -c {_argument(wait)}")
    return lines


def _in_one_line(text: str) -> str:
    """The text without what would begin a new line of a file, or a directive in it."""
    return _BREAKS.sub(" ", text).rstrip("\\")


def _argument(text: str) -> str:
    """One word of a command, in which systemd would replace variables."""
    return _word(text.replace("$", "$$"))


def _word(text: str) -> str:
    """One word of a unit: systemd knows quotes, escapes and `%`."""
    escaped = text.replace("%", "%%")
    if _SAFE.fullmatch(escaped):
        return escaped
    inner = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", inner) + '"'
