"""What every target writes down, worked out once: commands, image, models, sizes, labels."""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import dataclass, replace

from specserve.deploy.weights import published_bytes
from specserve.errors import UsageError
from specserve.hardware.accelerators import catalogue
from specserve.models.hub import NOT_READ
from specserve.plan.launch import launch
from specserve.plan.launchplan import FromEnv, LaunchPlan, host_in_url
from specserve.plan.nodes import LaunchNode, node_count, on_node
from specserve.plan.uses import Mount, contained, model_uses
from specserve.profile.schema import Profile, Server, world_size
from specserve.profile.writer import Commented
from specserve.vllm.versions import known_versions, table

MODELS = "/models"
"""Where a container finds the folders and files that the profile names by a path: its working folder."""
_LEADER = "{leader}"  # stands for node 0's address, which a target knows
"""A client that sends this header is answered without speculation."""
HOME_NOTE = "vLLM, torch and Triton compile into it"
USER_NOTE = "must be a user in the image's /etc/passwd: torch fails for any other uid"
CORRUPTED_TEXT = (
    "with speculation, vLLM's CPU build corrupts text at temperature > 0 (vllm-project/vllm#55005), unless the plug-in "
    "`specserve_vllm_cpu` of specserve's CPU set-up is installed beside it"
)
_START_MINUTES = 10
_BYTES_PER_S = 100e6
_UNKNOWN_BYTES = 60e9
"""What repositories hold beside the weights that vLLM reads, and would double the download."""
_TOKENIZER = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a rendered deployment: where it lies below the output folder, and all of its text."""

    path: str
    """With `/` between folders."""
    text: str
    alone: bool = True
    """Whether it means something without the files beside it: those that do are printed where there is no folder."""


def in_one_line(text: str) -> str:
    """The text without what would begin a new line of a file, or a directive in it."""
    return _BREAKS.sub(" ", text).rstrip("\\")


_REFERENCE = re.compile(
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?::\d+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_VERSION = re.compile(r"v?(\d+\.\d+)(\.\d+\S*)?")


@dataclass(frozen=True, slots=True)
class Image:
    """A container image, and the user of its passwd that is not root.

    torch asks for the name of the user while it is imported and dies of a uid without one (vllm-project/vllm#44548).
    The CUDA image has `vllm` with group 0, which may write where the image lets it (docker/Dockerfile); the CPU image
    has what its Ubuntu brings, `ubuntu`.
    """

    reference: str
    uid: int
    gid: int
    home: str

    @property
    def is_pinned(self) -> bool:
        """Whether it is named by its digest: the same image for ever."""
        return "@sha256:" in self.reference

    @property
    def commented(self) -> str | Commented:
        """The reference, with what to do about a tag."""
        note = "a tag can move: `--image …@sha256:…` pins it"
        return self.reference if self.is_pinned else Commented(note, self.reference)


def official(version: str, *, platform: str, reference: str | None = None) -> Image:
    """Returns the image of a vLLM version on `cpu` or `cuda`; `reference` names another, such as the same by digest.

    Raises UsageError for a text that is not an image.
    """
    if reference is not None and not _REFERENCE.fullmatch(reference):
        hint = f"write it like `vllm/vllm-openai:v{known_versions()[-1]}.0@sha256:…`"
        raise UsageError(f"`{reference}` is not a valid image reference", hint=hint)
    if platform == "cpu":
        name = reference or f"vllm/vllm-openai-cpu:v{release(version)}"
        return Image(name, uid=1000, gid=1000, home="/home/ubuntu")
    return Image(reference or f"vllm/vllm-openai:v{release(version)}", uid=2000, gid=0, home="/home/vllm")


def release(version: str) -> str:
    """Returns the number that an image's tag has: `0.33.0` of `0.33`, `0.32.0` of `0.32.0+cpu`."""
    match = _VERSION.match(version)
    if match is None:
        raise UsageError(f"`{version}` is not a vLLM version")
    return match[1] + (match[2] or ".0").partition("+")[0]


@dataclass(frozen=True, slots=True)
class StagedModel:
    """A repository of the Hub that must be there before vLLM starts. `step`: `target`, `tokenizer` or `draft`."""

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
    """One process, or one node's share without the flags of nodes; listens on all interfaces of its container."""
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
    """Of target and draft together; `weights_basis` says where that comes from, for a comment."""
    weights_basis: str
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
        """The names of what the container must find in MODELS, for a comment; empty if nothing is mounted."""
        return ", ".join(f"`{mount.name}`" for mount in self.mounts)

    @property
    def start_limit_s(self) -> int:
        """How long a start may take: ten minutes, and the time to read the weights at 100 MB/s, in whole minutes."""
        return (_START_MINUTES + math.ceil(self.weights_bytes / _BYTES_PER_S / 60)) * 60

    @property
    def download_s(self) -> int:
        """How long the models take from the Hub at 100 MB/s, in whole minutes; 0 if nothing is downloaded."""
        return math.ceil(self.weights_bytes / _BYTES_PER_S / 60) * 60 if self.downloads else 0

    @property
    def start_limit_from(self) -> str:
        """Where that comes from, for a comment."""
        lock = "" if "by the" in self.weights_basis else "; `specserve lock` records the real size"
        reading = f"{self.start_limit_s // 60 - _START_MINUTES} to read {self.weights_basis} at 100 MB/s"
        return f"{reading}, {_START_MINUTES} to start{lock}"

    @property
    def grace_s(self) -> int:
        """From the request to stop to the kill: what the profile gives running requests, and half a minute."""
        return math.ceil(self.profile.server.shutdown_timeout_s) + 30

    @property
    def grace_from(self) -> str:
        """Where that comes from, for a comment."""
        return f"{self.profile.server.shutdown_timeout_s:g} s (server.shutdown_timeout_s) and 30 s more"

    @property
    def may_be_offline(self) -> bool:
        """Whether vLLM needs nothing of the Hub but what is staged: no code of others, no adapters."""
        engine, frontend = self.profile.engine, self.profile.frontend
        return not (
            engine.get("trust_remote_code") or engine.get("enable_lora") or frontend.get("lora_modules")
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
    def shares(self) -> tuple[int, int]:
        """Weights of the server and of the canary, as small as they can be."""
        percent = self.canary.percent if self.canary else 0
        divisor = math.gcd(100, percent)
        return (100 - percent) // divisor, percent // divisor

    @property
    def corrupts_text(self) -> bool:
        """Whether vLLM's official CPU image, which lacks specserve's plug-in, corrupts sampled text."""
        return self.is_cpu and self.profile.speculation is not None

    @property
    def head(self) -> str:
        """The comment on top of every file."""
        text = rendered_head(self, f"vLLM {release(self.plan.vllm)}", self.plan.fingerprint)
        if self.corrupts_text and self.target != "monitoring":
            text += f"\n{textwrap.fill(f'Warning: {CORRUPTED_TEXT}', 100, break_on_hyphens=False)}"
        return text


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
        f"Do not edit: change the profile and render again, which overwrites this file.{elsewhere}"
    )


def deployment(
    profile: Profile,
    *,
    version: str,
    platform: str,
    image: str | None = None,
    weights_bytes: float | None = None,
) -> Deployment:
    """Returns a profile (at its lock) as containers run it. `image`: instead of vLLM's official one.

    Raises UsageError for arguments that this vLLM does not have, for nodes that cannot be planned, and for
    accelerators whose containers are not written.
    """
    wanted = profile.hardware
    accelerator = next((one for one in catalogue() if wanted and one.name == wanted.accelerator), None)
    if accelerator and accelerator.vendor != "nvidia":
        raise UsageError(
            f"{profile.span('hardware.accelerator')}: specserve cannot write containers for {accelerator.name} yet",
            hint="NVIDIA GPUs and CPUs are supported; `specserve plan` gives the command for any accelerator",
        )
    inside, mounts = contained(profile)
    server = replace(inside.server, host="0.0.0.0", port=inside.server.port or Server().port)  # noqa: S104
    hardware = replace(inside.hardware, devices=None) if inside.hardware else None
    spans = {**inside.spans, "server.host": inside.span("server.host")}
    inside = replace(inside, server=server, hardware=hardware, spans=spans)
    known = table(version)
    plan = launch(inside, table=known, platform=platform, version=version)
    nodes = node_count(inside)
    leader = None if inside.engine.get("master_addr") else _LEADER
    ranks = [
        on_node(plan, LaunchNode(rank, leader), profile=inside, table=known)
        for rank in range(nodes if nodes > 1 else 0)
    ]
    filled = accelerator.total_bytes * wanted.count * wanted.nodes if accelerator and wanted else None
    if weights_bytes is not None:
        size_bytes, basis = weights_bytes, "by the lock"
    elif known_bytes := published_bytes(profile):
        size_bytes, basis = known_bytes
    else:
        size_bytes = filled or _UNKNOWN_BYTES
        basis = "assumed to fill the accelerators" if filled else "a guess"
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
    """Returns a name that Kubernetes takes for a Service, with room for an ending: letters, digits and dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "vllm-server"
    return plain if plain[0].isalpha() else f"m-{plain}"[:40].strip("-")


def environment(made: Deployment, *, cache: str) -> dict[str, str]:
    """Returns the server's variables that are no secret: the profile's, and where the container may write."""
    values = {name: value for name, value in made.plan.env.items() if isinstance(value, str)}
    own = {"HOME": made.image.home, "HF_HOME": cache}
    if made.downloads and made.may_be_offline:
        own["HF_HUB_OFFLINE"] = "1"
    return {**own, **values}


def staging(download: StagedModel) -> list[str]:
    """Returns the command that brings one repository into the cache; `hf` comes with vLLM."""
    revision = [f"--revision={download.revision}"] if download.revision else []
    flag, patterns = ("--include", _TOKENIZER) if download.tokenizer_only else ("--exclude", NOT_READ)
    words = [word for pattern in patterns for word in (flag, pattern)]
    return ["hf", "download", download.model, *revision, *words]


def question(made: Deployment, *, port: int) -> list[str]:
    """Returns a command that fails until the server answers; curl is in both images."""
    unchecked = ["--insecure"] if made.scheme == "https" else []
    return ["curl", "--fail", "--silent", "--show-error", "--max-time", "5", *unchecked,
            f"{made.scheme}://127.0.0.1:{port}/health"]  # fmt: skip
