"""What every target writes down, worked out once: commands, image, models, places, limits."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from specserve.errors import UsageError
from specserve.hardware.accelerators import catalogue
from specserve.models.facts import published_weights
from specserve.models.hub import NOT_READ, is_offline
from specserve.plan.launch import launch
from specserve.plan.launchplan import FromEnv, LaunchPlan, host_in_url, node_count
from specserve.plan.locking import ModelUse, cache_of, lock_of, model_uses
from specserve.profile.schema import Profile, Server, fingerprint, world_size
from specserve.profile.writer import Commented
from specserve.vllm.versions import table

MODELS = "/models"
"""A container's working folder, with the folders and files that the profile names by a path."""
USER_NOTE = "must be a user in the image's /etc/passwd: torch fails for any other uid"
CORRUPTED_TEXT = (
    "with speculation, vLLM's CPU build corrupts text at temperature > 0 (vllm-project/vllm#55005) "
    "unless the plug-in `specserve_vllm_cpu` of specserve's CPU set-up is installed beside it"
)
_LEADER = "{leader}"  # stands for node 0's address, which a target knows
_START_MINUTES = 10
_BYTES_PER_S = 100e6
_UNKNOWN_BYTES = 60e9
_TOKENIZER = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
_CACHE = re.compile(
    r"HOME|XDG_CACHE_HOME|HF_HOME|(HF|HUGGINGFACE)_HUB_CACHE|HF_XET_CACHE|TRANSFORMERS_CACHE"
    r"|VLLM_(CACHE|ASSETS|XLA_CACHE)\w*|(TRITON|TORCHINDUCTOR)_CACHE_DIR|FLASHINFER_WORKSPACE_BASE"
)
"""Variables that name a place of the host to write to."""
_PATHS = {
    *("model", "tokenizer", "hf_config_path", "generation_config", "chat_template", "lora_modules"),
    *("tool_parser_plugin", "reasoning_parser_plugin", "log_config_file"),
    *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"),
}
"""The arguments that name something to read; `root_path` is none."""
_PATH = re.compile(r"(?P<name>[^/=]*=)?(?P<path>/.*)", re.S)
"""A path, or that of an adapter as `name=path`."""


class Reference(str):
    """A text in which the reader of the document is to replace variables; in no other text."""

    __slots__ = ()


def literal(value: Any) -> Any:
    """The value with its texts such that a reader replaces variables in a `Reference` alone.

    Compose reads `$NAME` as a variable, Kubernetes `$(NAME)`, and both `$$` as `$`. Source:
    third_party/forked/golang/expansion/expand.go of kubernetes.
    """
    if isinstance(value, Commented):
        return Commented(value.comment, literal(value.value))
    if isinstance(value, Mapping):
        return {key: literal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    is_text = isinstance(value, str) and not isinstance(value, Reference)
    return value.replace("$", "$$") if is_text else value


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a deployment: where it lies below the output folder, and all of its text."""

    path: str
    """With `/` between folders."""
    text: str
    alone: bool = True
    """Whether it means something without the files beside it, and so is printed without `-o`."""


@dataclass(frozen=True, slots=True)
class Image:
    """A container image, and the user of its passwd that is not root.

    torch asks for its user's name and dies of a uid without one (vllm-project/vllm#44548). The CUDA
    image has `vllm` with group 0 (docker/Dockerfile), the CPU image Ubuntu's `ubuntu`.
    """

    reference: str
    uid: int
    gid: int
    home: str
    """On a volume that lasts: for models of the Hub and what vLLM, torch and Triton compile."""


@dataclass(frozen=True, slots=True)
class Canary:
    """An alternative that runs beside the profile, and its share of the requests."""

    alternative: str
    percent: int
    made: Deployment


@dataclass(frozen=True, slots=True)
class Deployment:
    """One profile, ready to be written for a target. Paths are those inside of a container."""

    name: str
    """The profile's name as a DNS label of 40 characters at most."""
    profile: Profile
    plan: LaunchPlan
    """One process, or a node's share without the flags of nodes; listens on all interfaces."""
    ranks: tuple[LaunchPlan, ...]
    """One plan per node, if there are several."""
    image: Image
    host: str
    """Where the profile has the server listen."""
    devices: tuple[int | str, ...]
    """The accelerators of one host, by index or UUID, if the profile names them."""
    mounts: Mapping[str, str]
    downloads: tuple[ModelUse, ...]
    """The repositories of the Hub, each once at each revision."""
    weights_bytes: float
    """Of target and draft together; `weights_basis` says where that comes from."""
    weights_basis: str
    left_out: tuple[str, ...] = ()
    """Keys for caches of the profile's host: a deployment has a volume instead."""
    target: str = ""
    """What it is being written for."""
    canary: Canary | None = None

    @property
    def nodes(self) -> int:
        """How many."""
        return max(1, len(self.ranks))

    @property
    def is_cpu(self) -> bool:
        """Whether it computes on processors."""
        return self.plan.platform == "cpu"

    @property
    def ranks_per_node(self) -> int:
        """vLLM's ranks on each node: one per GPU."""
        return max(1, world_size(self.profile) // self.nodes)

    @property
    def shm_gib(self) -> int:
        """Room in /dev/shm, for NCCL and vLLM's message queues."""
        return 2 * self.ranks_per_node

    @property
    def mounted(self) -> str:
        """What the container must find in MODELS, for a comment; empty if nothing is mounted."""
        return ", ".join(f"`{name}`" for name in self.mounts)

    @property
    def read_s(self) -> int:
        """How long the weights take from a disk or the Hub at 100 MB/s, in whole minutes."""
        return math.ceil(self.weights_bytes / _BYTES_PER_S / 60) * 60

    @property
    def start_limit_s(self) -> int:
        """How long a start may take."""
        return _START_MINUTES * 60 + self.read_s

    @property
    def start_limit_from(self) -> str:
        """Where that comes from, for a comment."""
        reading = f"{self.read_s // 60} to read {self.weights_basis} at 100 MB/s"
        return f"{self.start_limit_s // 60} minutes: {reading}, {_START_MINUTES} to start"

    @property
    def grace_s(self) -> int:
        """From the request to stop to the kill: what running requests get, and half a minute."""
        return math.ceil(self.profile.server.shutdown_timeout_s) + 30

    @property
    def may_be_offline(self) -> bool:
        """Whether vLLM needs nothing of the Hub but what is staged: no code, no adapters."""
        engine, frontend = self.profile.engine, self.profile.frontend
        more = (engine.get("trust_remote_code"), engine.get("enable_lora"))
        return not any((*more, frontend.get("lora_modules")))

    @property
    def secrets(self) -> dict[str, str]:
        """By variable of the server, the variable of the profile that holds its secret value."""
        return {key: one.name for key, one in self.plan.env.items() if isinstance(one, FromEnv)}

    @property
    def variables(self) -> dict[str, str]:
        """The server's other variables."""
        return {key: one for key, one in self.plan.env.items() if isinstance(one, str)}

    @property
    def scheme(self) -> str:
        """`http`, or `https` if the profile has a certificate."""
        return "https" if self.profile.frontend.get("ssl_certfile") else "http"

    @property
    def address(self) -> str:
        """Host and port at which a client on the server's machine finds it."""
        return f"{host_in_url(self.host)}:{self.plan.port}"

    @property
    def corrupts_text(self) -> bool:
        """Whether vLLM's official CPU image corrupts sampled text."""
        return self.is_cpu and self.profile.speculation is not None

    @property
    def head(self) -> str:
        """The comment on top of every file."""
        return self.head_for(f"vLLM {self.plan.vllm}", self.plan.fingerprint)

    def head_for(self, engine: str, fingerprint: str) -> str:
        """What a file says of itself, by the engine and the fingerprint of its launch."""
        text = (
            f"Rendered by `specserve render --to {self.target}` from `{self.profile.name}`\n"
            f"for {engine}, fingerprint {fingerprint[:16]}.\n"
            "Do not edit: change the profile and render again, which overwrites this file."
        )
        if not self.corrupts_text or self.target == "monitoring":
            return text
        warning = textwrap.fill(f"Warning: {CORRUPTED_TEXT}", 98, break_on_hyphens=False)
        return f"{text}\n{warning}"


def deployment(
    profile: Profile, *, version: str, platform: str, image: str | None = None
) -> Deployment:
    """Return a profile (at its lock) as containers run it.

    `version`: a minor of vLLM; `platform`: `cpu` or `cuda`; `image`: instead of vLLM's official
    one. Raises UsageError for arguments that this vLLM does not have, for nodes that cannot be
    planned, and for accelerators whose containers are not written.
    """
    wanted = profile.hardware
    name = wanted and wanted.accelerator
    accelerator = next((one for one in catalogue() if one.name == name), None)
    if accelerator and accelerator.vendor != "nvidia":
        place = profile.span("hardware.accelerator")
        raise UsageError(
            f"{place}: specserve cannot write containers for {accelerator.name} yet",
            hint="`specserve plan` gives the command for any accelerator",
        )
    inside, mounts = contained(profile)
    whole = fingerprint(inside)
    downloads: dict[tuple[str, str | None], ModelUse] = {}
    uses = model_uses(inside, alternatives=False)
    for use in sorted(uses, key=lambda use: use.tokenizer_only):  # whole repositories first
        if not use.model.startswith("."):
            downloads.setdefault((use.model, use.revision), use)
    cache: dict[str, str] = {}
    if downloads and is_offline(profile.env):  # no step downloads: the cache itself is mounted
        name = next(name for name in ("hub", "hub-cache", "hub-cache-2") if name not in mounts)
        mounts, cache = {**mounts, name: str(cache_of(profile))}, {"HF_HUB_CACHE": f"./{name}"}
        downloads.clear()
    left_out = [f"env.{name}" for name in inside.env if _CACHE.fullmatch(name)]
    left_out += ["engine.download_dir"] if inside.engine.get("download_dir") else []
    inside = replace(
        inside,
        server=replace(inside.server, host="0.0.0.0", port=inside.server.port or Server().port),  # noqa: S104
        hardware=replace(wanted, devices=None) if wanted else None,
        env={
            **{name: value for name, value in inside.env.items() if not _CACHE.fullmatch(name)},
            **cache,
        },
        engine={name: value for name, value in inside.engine.items() if name != "download_dir"},
    )
    launched = partial(launch, table=table(version), platform=platform, version=f"{version}.0")
    plan = replace(launched(inside), fingerprint=whole)
    nodes = node_count(inside)
    led = replace(inside, engine={"master_addr": _LEADER, **inside.engine})
    ranks = [launched(led, node=rank) for rank in range(nodes if nodes > 1 else 0)]
    size_bytes, basis = model_bytes(profile)
    official = Image(image or f"vllm/vllm-openai:v{version}.0", 2000, 0, "/home/vllm")
    if platform == "cpu":
        name = image or f"vllm/vllm-openai-cpu:v{version}.0"
        official = Image(name, 1000, 1000, "/home/ubuntu")
    return Deployment(
        name=dns_label(profile.name),
        profile=inside,
        plan=plan,
        ranks=tuple(ranks),
        image=official,
        host=profile.server.host,
        devices=(wanted and wanted.devices) or (),
        mounts=mounts,
        downloads=tuple(downloads.values()),
        left_out=tuple(left_out),
        weights_bytes=size_bytes,
        weights_basis=f"{size_bytes / 1e9:.3g} GB of weights ({basis})",
    )


def contained(profile: Profile) -> tuple[Profile, dict[str, str]]:
    """Return the profile with each absolute path as `./NAME`, and the path of each name.

    What the lock says of a model goes with it, so that the fingerprint stays.
    """
    names: dict[str, str] = {}  # by path

    def short(value: Any) -> Any:
        """The last part of a path, with a number where another path has that."""
        if isinstance(value, tuple):
            return tuple(map(short, value))
        found = _PATH.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            return value
        path = found["path"]
        if path not in names:
            last = PurePosixPath(path).name or "root"
            free = (f"{last}-{n}" if n > 1 else last for n in itertools.count(1))
            names[path] = next(name for name in free if name not in names.values())
        return f"{found['name'] or ''}./{names[path]}"

    def shortened(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: short(value) if key in _PATHS else value for key, value in values.items()}

    target, block = profile.target, profile.speculation
    inside = replace(
        profile,
        target=replace(target, model=short(target.model), tokenizer=short(target.tokenizer)),
        speculation=replace(block, keys=shortened(block.keys)) if block else None,
        alternatives={},
        engine=shortened(profile.engine),
        frontend=shortened(profile.frontend),
        identities={short(model): what for model, what in profile.identities.items()},
    )
    return inside, {name: path for path, name in names.items()}


def model_bytes(profile: Profile) -> tuple[float, str]:
    """Return what target and draft weigh, and where that comes from.

    It is the lock's size, or the published one; no local folder is looked at, so that the same
    profile and lock give the same files everywhere.
    """
    uses = [use for use in model_uses(profile, alternatives=False) if not use.tokenizer_only]
    lock = lock_of(profile)
    facts = [lock.find(use.model, revision=use.revision) if lock else None for use in uses]
    sizes = [one.files[name].size_bytes for one in facts if one for name in one.weight_files]
    if all(facts) and sizes and None not in sizes:
        return sum(size or 0 for size in sizes), "by the lock"
    published = [published_weights(use.model, "weights") for use in uses]
    if not published[0]:
        return _UNKNOWN_BYTES, "a guess: `specserve lock` records the real size"
    without = "" if all(published) else ", without the draft"
    return sum(sum((one or {}).values()) for one in published), f"by the published size{without}"


def dns_label(name: str) -> str:
    """Return a name that Kubernetes takes for a Service, with room for an ending."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "vllm-server"
    return plain if plain[0].isalpha() else f"m-{plain}"[:40].strip("-")


def places(home: str) -> dict[str, str]:
    """Return the variables that lead models and compiled code to one place that lasts."""
    cache = f"{home}/.cache"
    return {"HOME": home, "HF_HOME": f"{cache}/huggingface", "VLLM_CACHE_ROOT": f"{cache}/vllm"}


def environment(made: Deployment) -> dict[str, str]:
    """Return the variables of the server's container that are no secret."""
    offline = {"HF_HUB_OFFLINE": "1"} if made.downloads and made.may_be_offline else {}
    return {**places(made.image.home), **offline, **made.variables}


def staging(use: ModelUse) -> list[str]:
    """Return the command that brings one repository into the cache; `hf` comes with vLLM."""
    revision = [f"--revision={use.revision}"] if use.revision else []
    flag, patterns = ("--include", _TOKENIZER) if use.tokenizer_only else ("--exclude", NOT_READ)
    words = [word for pattern in patterns for word in (flag, pattern)]
    return ["hf", "download", use.model, *revision, *words]


def staging_script(made: Deployment) -> str:
    """Return a script for `sh -ec` that brings every repository, or fails."""
    return " && ".join(shlex.join(staging(use)) for use in made.downloads)
