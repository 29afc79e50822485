"""Where specserve keeps what must outlive it. Does not know what that is."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """`SPECSERVE_STATE_DIR`, or the user's state folder as the platform has it."""
    import platformdirs

    return Path(os.environ.get("SPECSERVE_STATE_DIR") or platformdirs.user_state_dir("specserve"))


def private(folder: Path) -> Path:
    """The folder, made where it is missing, for its owner alone: as is every folder of ours above it.

    Raises OSError.
    """
    base = state_folder()
    if folder == base or not folder.is_relative_to(base):
        folder.parent.mkdir(parents=True, exist_ok=True)
    else:
        private(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder
