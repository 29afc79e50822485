"""vLLM's official container images: which one runs a version, and as whom. Pulls none."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specserve.errors import UsageError
from specserve.vllm.facts import READ

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


def official(version: str, *, platform: str, reference: str | None = None) -> Image:
    """The image of a vLLM version on `cpu` or `cuda`; `reference` names another, such as the same by its digest.

    Raises UsageError for a text that is no image.
    """
    if reference is not None and not _REFERENCE.fullmatch(reference):
        raise UsageError(
            f"`{reference}` is no image", hint=f"write it like `vllm/vllm-openai:v{READ[-1]}.0@sha256:…`"
        )
    repository = "vllm/vllm-openai-cpu" if platform == "cpu" else "vllm/vllm-openai"
    name = reference or f"{repository}:v{release(version)}"
    if platform == "cpu":
        return Image(name, uid=1000, gid=1000, home="/home/ubuntu")
    return Image(name, uid=2000, gid=0, home="/home/vllm")


def release(version: str) -> str:
    """`0.33.0` of `0.33`, `0.32.0` of `0.32.0+cpu`: the number that an image's tag has."""
    match = _VERSION.match(version)
    if match is None:
        raise UsageError(f"`{version}` is no version of vLLM")
    return match[1] + (match[2] or ".0").partition("+")[0]
