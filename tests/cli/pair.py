"""A pair of small checkpoints and a profile that names them, for commands that read models and start nothing."""

from __future__ import annotations

from pathlib import Path

from tests.checks.checkpoints import checkpoint

PROFILE = """\
target: {model: ./llama, max_model_len: 1024}
speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
engine: {max_num_seqs: 16, enforce_eager: true, kv_cache_memory_bytes: 64M}
"""


def laid_out(folder: Path) -> Path:
    """The profile, beside its models."""
    for name in ("llama", "llama-draft"):
        checkpoint(folder, name)
    file = folder / "p.yaml"
    file.write_text(PROFILE, encoding="utf-8")
    return file
