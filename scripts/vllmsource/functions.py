"""The functions of vLLM that facts rest on: which of them changed, for a person to read again.

`functions.json` holds a hash of each by minor version. A fact quotes one line; a new condition beside it shows here.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

HASHES = Path(__file__).parent / "functions.json"
WATCHED = {
    "config/vllm.py": (
        "use_v2_model_runner", "_is_default_v2_model_runner_model", "_get_v2_model_runner_unsupported_features",
        "_get_dbo_unsupported_features", "_get_v1_model_runner_unsupported_features", "_set_max_num_scheduled_tokens",
        "_maybe_disable_dynamic_sd_for_v1", "_limit_max_model_len_to_draft",
    ),
    "config/model.py": ("_get_and_verify_max_len",),
    "config/speculative.py": ("__post_init__", "hf_config_override", "_maybe_override_draft_max_position_embeddings"),
    "transformers_utils/config.py": ("patch_legacy_rope_type",),
    "envs.py": ("maybe_convert_bool",),
}  # fmt: skip


def hashes(package: Path) -> dict[str, str]:
    """A hash of each watched function that the package has, without its comments and layout."""
    found = {}
    for file, names in WATCHED.items():
        path = package / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name in names:
                if ast.get_docstring(node):
                    node.body = node.body[1:] or [ast.Pass()]
                text = ast.unparse(node)
                found[f"{file}:{node.name}"] = hashlib.sha256(text.encode()).hexdigest()[:12]
    return dict(sorted(found.items()))


def read_hashes() -> dict[str, dict[str, str]]:
    """The kept hashes by minor version."""
    known: dict[str, dict[str, str]] = (
        json.loads(HASHES.read_text(encoding="utf-8")) if HASHES.is_file() else {}
    )
    return known


def write_hashes(version: str, found: dict[str, str]) -> None:
    """Keep the hashes of a version."""
    known = sorted({**read_hashes(), version: found}.items())
    HASHES.write_text(json.dumps(dict(known), indent=1) + "\n", encoding="utf-8")


def changed(found: dict[str, str], before: dict[str, str]) -> list[str]:
    """The functions that are new, gone or other than before."""
    return sorted(name for name in found.keys() | before.keys() if found.get(name) != before.get(name))
