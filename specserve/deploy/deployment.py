"""What every target writes down, worked out once: commands, image, models, sizes, labels."""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import dataclass, replace

from specserve.deploy.weights import model_bytes
from specserve.errors import UsageError
from specserve.hardware.accelerators import catalogue
from specserve.models.hub import NOT_READ
from specserve.plan.launch import launch
from specserve.plan.launchplan import FromEnv, LaunchPlan, host_in_url
from specserve.plan.nodes import LaunchNode, node_count, on_node
from specserve.plan.uses import Mount, contained, model_uses
from specserve.profile.schema import Profile, Server, fingerprint, world_size
from specserve.profile.writer import Commented
from specserve.vllm.versions import known_versions, table

MODELS = "/models"
"""A container's working folder, with the folders and files that the profile names by a path."""
_LEADER = "{leader}"  # stands for node 0's address, which a target knows
USER_NOTE = "must be a user in the image's /etc/passwd: torch fails for any other uid"
CORRUPTED_TEXT = (
    "with speculation, vLLM's CPU build corrupts text at temperature > 0 (vllm-project/vllm#55005) "
    "unless the plug-in `specserve_vllm_cpu` of specserve's CPU set-up is installed beside it"
)
_START_MINUTES = 10
_BYTES_PER_S = 100e6
_TOKENIZER = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
_CACHE = re.compile(
    r"HOME|XDG_CACHE_HOME|HF_HOME|(HF|HUGGINGFACE)_HUB_CACHE|HF_XET_CACHE|TRANSFORMERS_CACHE"
    r"|VLLM_(CACHE|ASSETS|XLA_CACHE)\w*|(TRITON|TORCHINDUCTOR)_CACHE_DIR|FLASHINFER_WORKSPACE_BASE"
)
"""Variables that name a place of the host to write to."""
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Reference(str):
    """A text in which the reader of the document is to replace variables; in no other text."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a deployment: where it lies below the output folder, and all of its text."""

    path: str
    """With `/` between folders."""
    text: str
    alone: bool = True
    """Whether it means something without the files beside it, and so is printed without `-o`."""


def in_one_line(text: str) -> str:
    """The text without what would begin a new line of a file, or a directive in it."""
    return _BREAKS.sub(" ", text).rstrip("\\")


_REFERENCE = re.compile(r"[a-z0-9][a-z0-9._/:-]*(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?")
_VERSION = re.compile(r"v?(\d+\.\d+)(\.\d+\S*)?")


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

    @property
    def is_pinned(self) -> bool:
        """Whether it is named by its digest."""
        return "@sha256:" in self.reference

    @property
    def commented(self) -> str | Commented:
        """The reference, with what to do about a tag."""
        note = "a tag can move: `--image …@sha256:…` pins it"
        return self.reference if self.is_pinned else Commented(note, self.reference)


def official(version: str, *, platform: str, reference: str | None = None) -> Image:
    """Return the image of a vLLM version on `cpu` or `cuda`; `reference` names another.

    Raises UsageError for a text that is not an image.
    """
    if reference is not None and not _REFERENCE.fullmatch(reference):
        hint = f"write it like `vllm/vllm-openai:v{known_versions()[-1]}.0@sha256:…`"
        raise UsageError(f"`{reference}` is not a valid image reference", hint=hint)
    if platform == "cpu":
        name = reference or f"vllm/vllm-openai-cpu:v{release(version)}"
        return Image(name, uid=1000, gid=1000, home="/home/ubuntu")
    return Image(
        reference or f"vllm/vllm-openai:v{release(version)}", uid=2000, gid=0, home="/home/vllm"
    )


def release(version: str) -> str:
    """Return the number that an image's tag has: `0.33.0` of `0.33`, `0.32.0` of `0.32.0+cpu`."""
    match = _VERSION.match(version)
    if match is None:
        raise UsageError(f"`{version}` is not a vLLM version")
    return match[1] + (match[2] or ".0").partition("+")[0]


@dataclass(frozen=True, slots=True)
class StagedModel:
    """A repository that vLLM needs. `step`: `target`, `tokenizer` or `draft`."""

    step: str
    model: str
    revision: str | None
    tokenizer_only: bool = False


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
    mounts: tuple[Mount, ...]
    downloads: tuple[StagedModel, ...]
    weights_bytes: float
    """Of target and draft together; `weights_basis` says where that comes from."""
    weights_basis: str
    left_out: tuple[str, ...] = ()
    """Keys for caches of the profile's host: a deployment has a volume instead."""
    target: str = ""
    """What it is being written for."""
    canary: Canary | None = None

    @property
    def reached_host(self) -> str:
        """Where a client on the server's machine finds it, as it stands in a URL."""
        return host_in_url(self.host)

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
        return ", ".join(f"`{mount.name}`" for mount in self.mounts)

    @property
    def start_limit_s(self) -> int:
        """How long a start may take: ten minutes, and to read the weights, in whole minutes."""
        return _START_MINUTES * 60 + _read_s(self.weights_bytes)

    @property
    def download_s(self) -> int:
        """How long the models take from the Hub at 100 MB/s; 0 if nothing is downloaded."""
        return _read_s(self.weights_bytes) if self.downloads else 0

    @property
    def start_limit_from(self) -> str:
        """Where that comes from, for a comment."""
        minutes = _read_s(self.weights_bytes) // 60
        reading = f"{minutes} to read {self.weights_basis} at 100 MB/s"
        return f"{reading}, {_START_MINUTES} to start"

    @property
    def grace_s(self) -> int:
        """From the request to stop to the kill: what running requests get, and half a minute."""
        return math.ceil(self.profile.server.shutdown_timeout_s) + 30

    @property
    def may_be_offline(self) -> bool:
        """Whether vLLM needs nothing of the Hub but what is staged: no code, no adapters."""
        engine, frontend = self.profile.engine, self.profile.frontend
        return not (
            engine.get("trust_remote_code")
            or engine.get("enable_lora")
            or frontend.get("lora_modules")
        )

    @property
    def has_key(self) -> bool:
        """Whether requests need a key."""
        return any(isinstance(value, FromEnv) for value in self.plan.env.values())

    @property
    def scheme(self) -> str:
        """`http`, or `https` if the profile has a certificate."""
        return "https" if self.profile.frontend.get("ssl_certfile") else "http"

    @property
    def labels(self) -> dict[str, str]:
        """What every object carries: name, vLLM's version, the beginning of the fingerprint."""
        return {
            "app.kubernetes.io/name": self.name,
            "app.kubernetes.io/version": release(self.plan.vllm),
            "app.kubernetes.io/managed-by": "specserve",
            "specserve/fingerprint": self.plan.fingerprint[:16],
        }

    @property
    def corrupts_text(self) -> bool:
        """Whether vLLM's official CPU image corrupts sampled text."""
        return self.is_cpu and self.profile.speculation is not None

    @property
    def head(self) -> str:
        """The comment on top of every file."""
        text = rendered_head(self, f"vLLM {release(self.plan.vllm)}", self.plan.fingerprint)
        if self.corrupts_text and self.target != "monitoring":
            warning = textwrap.fill(f"Warning: {CORRUPTED_TEXT}", 98, break_on_hyphens=False)
            text += f"\n{warning}"
        return text


def _read_s(size_bytes: float) -> int:
    """How long that takes from a disk or the Hub, in whole minutes."""
    return math.ceil(size_bytes / _BYTES_PER_S / 60) * 60


_OWN_CHANGES = {
    "compose": "compose.override.yaml",
    "kubernetes": "a kustomization of your own",
    "systemd": "a drop-in (`systemctl edit`)",
}
"""Where what a profile does not say belongs, by target."""


def rendered_head(made: Deployment, engine: str, fingerprint: str) -> str:
    """Return what every rendered file says of itself."""
    own = _OWN_CHANGES.get(made.target)
    elsewhere = f"\nWhat the profile does not say belongs in {own}." if own else ""
    return (
        f"Rendered by `specserve render --to {made.target}` from `{made.profile.name}`\n"
        f"for {engine}, fingerprint {fingerprint[:16]}.\n"
        "Do not edit: change the profile and render again, which overwrites this file."
        f"{elsewhere}"
    )


def deployment(
    profile: Profile,
    *,
    version: str,
    platform: str,
    image: str | None = None,
) -> Deployment:
    """Return a profile (at its lock) as containers run it. `image`: instead of vLLM's official one.

    Raises UsageError for arguments that this vLLM does not have, for nodes that cannot be planned,
    and for accelerators whose containers are not written.
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
    server = replace(inside.server, host="0.0.0.0", port=inside.server.port or Server().port)  # noqa: S104
    inside = replace(
        inside,
        server=server,
        hardware=replace(inside.hardware, devices=None) if inside.hardware else None,
        spans={**inside.spans, "server.host": inside.span("server.host")},
    )
    whole = fingerprint(inside)
    left_out = [f"env.{name}" for name in inside.env if _CACHE.fullmatch(name)]
    left_out += ["engine.download_dir"] if inside.engine.get("download_dir") else []
    inside = replace(
        inside,
        env={name: value for name, value in inside.env.items() if not _CACHE.fullmatch(name)},
        engine={name: value for name, value in inside.engine.items() if name != "download_dir"},
    )
    known = table(version)
    plan = launch(inside, table=known, platform=platform, version=version)
    plan = replace(plan, fingerprint=whole)
    nodes = node_count(inside)
    leader = None if inside.engine.get("master_addr") else _LEADER
    ranks = [
        on_node(plan, LaunchNode(rank, leader), profile=inside, table=known)
        for rank in range(nodes if nodes > 1 else 0)
    ]
    size_bytes, basis = model_bytes(profile)
    return Deployment(
        name=dns_label(profile.name),
        profile=inside,
        plan=plan,
        ranks=tuple(ranks),
        image=official(version, platform=platform, reference=image),
        host=profile.server.host,
        devices=(wanted and wanted.devices) or (),
        mounts=mounts,
        downloads=_downloads(inside),
        left_out=tuple(left_out),
        weights_bytes=size_bytes,
        weights_basis=f"{size_bytes / 1e9:.3g} GB of weights ({basis})",
    )


def _downloads(profile: Profile) -> tuple[StagedModel, ...]:
    """The repositories of the Hub, each once at each revision."""
    found: dict[tuple[str, str | None], StagedModel] = {}
    for use in model_uses(profile, alternatives=False):
        key = (use.model, use.revision)
        if not use.model.startswith(".") and key not in found:
            loaded = "draft" if use.path.startswith("speculation") else "target"
            step = "tokenizer" if use.tokenizer_only else loaded
            found[key] = StagedModel(step, *key, tokenizer_only=use.tokenizer_only)
    return tuple(found.values())


def dns_label(name: str) -> str:
    """Return a name that Kubernetes takes for a Service, with room for an ending."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "vllm-server"
    return plain if plain[0].isalpha() else f"m-{plain}"[:40].strip("-")


def environment(made: Deployment, *, cache: str) -> dict[str, str]:
    """Return the server's variables that are no secret. `cache`: for models and compiled code."""
    values = {name: value for name, value in made.plan.env.items() if isinstance(value, str)}
    own = {"HOME": made.image.home, "HF_HOME": cache, "VLLM_CACHE_ROOT": f"{cache}/vllm"}
    if made.downloads and made.may_be_offline:
        own["HF_HUB_OFFLINE"] = "1"
    return {**own, **values}


def staging(download: StagedModel) -> list[str]:
    """Return the command that brings one repository into the cache; `hf` comes with vLLM."""
    revision = [f"--revision={download.revision}"] if download.revision else []
    flag, patterns = (
        ("--include", _TOKENIZER) if download.tokenizer_only else ("--exclude", NOT_READ)
    )
    words = [word for pattern in patterns for word in (flag, pattern)]
    return ["hf", "download", download.model, *revision, *words]


def question(made: Deployment, *, port: int) -> list[str]:
    """Return a command that fails until the server answers; curl is in both images."""
    unchecked = ["--insecure"] if made.scheme == "https" else []
    return ["curl", "--fail", "--silent", "--show-error", "--max-time", "5", *unchecked,
            f"{made.scheme}://127.0.0.1:{port}/health"]  # fmt: skip
