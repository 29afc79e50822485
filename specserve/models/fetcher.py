"""The child that downloads: the Hub library's `snapshot_download`, which knows no end of a silence and no interrupt.

    python -m specserve.models.fetcher

One JSON line in (model, commit, cache, names), one out: null, or what went wrong. It ends with its parent.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import threading
from typing import Any


def main() -> None:
    """Answer one request, and leave without waiting for threads of the library."""
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = _download(asked)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


def _end_with_parent() -> None:
    """The parent holds the other end of stdin for as long as it lives."""
    sys.stdin.read()
    os._exit(1)


def _download(asked: dict[str, Any]) -> dict[str, str] | None:
    from huggingface_hub import errors, snapshot_download

    try:
        snapshot_download(
            asked["model"],
            revision=asked["commit"],
            cache_dir=asked["cache"],
            allow_patterns=[glob.escape(name) for name in asked["names"]],
            endpoint=os.environ.get("HF_ENDPOINT") or None,
            library_name="specserve",
        )
    except errors.GatedRepoError:
        return {"cause": "gated", "message": "is gated"}
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        return {"cause": "not_found", "message": "is not there, or not for you"}
    except Exception as error:
        words = str(error).strip().splitlines() or [type(error).__name__]
        return {"cause": "unreachable", "message": words[0]}
    return None


if __name__ == "__main__":
    main()
