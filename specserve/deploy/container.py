"""What every container of a deployment has, whoever runs it: environment, staging of models, questions to it."""

from __future__ import annotations

from specserve.deploy.deployment import Deployment, Download

HOME_NOTE = "vLLM, torch and Triton compile into it"
_LEFT_OUT = ("original/*", "*.pth", "*.gguf", "*.onnx", "*.msgpack", "*.h5")
"""What repositories hold beside the weights that vLLM reads, and would double the download."""


def environment(made: Deployment, *, cache: str) -> dict[str, str]:
    """The variables of the server that are no secret: the profile's, and where the container may write."""
    values = {name: value for name, value in made.plan.env.items() if isinstance(value, str)}
    own = {"HOME": made.image.home, "HF_HOME": cache}
    if made.downloads and made.may_be_offline:
        own["HF_HUB_OFFLINE"] = "1"
    return {**own, **values}


def staging(download: Download) -> list[str]:
    """The command that brings one repository into the cache; `hf` comes with vLLM."""
    words = ["hf", "download", download.model]
    if download.revision:
        words.append(f"--revision={download.revision}")
    if download.tokenizer_only:
        for pattern in ("*.json", "*.txt", "*.model", "*.jinja", "*.py"):
            words += ["--include", pattern]
        return words
    for pattern in _LEFT_OUT:
        words += ["--exclude", pattern]
    return words


def question(made: Deployment, *, port: int) -> list[str]:
    """A command that fails until the server answers; curl is in both images."""
    unchecked = ["--insecure"] if made.scheme == "https" else []
    return ["curl", "--fail", "--silent", "--show-error", "--max-time", "5", *unchecked,
            f"{made.scheme}://127.0.0.1:{port}/health"]  # fmt: skip
