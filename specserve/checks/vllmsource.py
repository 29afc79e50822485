"""The vLLM that is asked: the installed one, or one that is not installed."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from specserve.errors import FactError
from specserve.models.hub import fact_cache

_KEPT = (".py", ".json", "/METADATA", "/entry_points.txt")
"""What the configuration code reads of a wheel; the kernels are most of its size."""
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Vllm:
    """The vLLM that is asked. `source`: a folder that holds its package; None for the installed one."""

    version: str
    source: Path | None = None


def vllm_to_ask(source: Path | None) -> Vllm:
    """The installed vLLM, or the one in a wheel or in a folder that holds its package. Raises FactError."""
    if source is None:
        from specserve.vllm.versions import installed

        found = installed()
        if found is None:
            hint = "`--vllm-source` names a wheel, or a folder with its files"
            raise FactError("no vLLM is installed in this Python", hint=hint)
        return Vllm(found.version)
    folder = _unpacked(source) if source.is_file() else source
    metadata = sorted(folder.glob("vllm*.dist-info/METADATA"))
    if not (folder / "vllm" / "__init__.py").is_file() or not metadata:
        hint = "name a wheel of vLLM, or a folder with its files: `vllm` and one that ends in `.dist-info`"
        raise FactError(f"{source} does not hold a vLLM", hint=hint)
    lines = metadata[0].read_text(encoding="utf-8", errors="replace").splitlines()
    version = next((line.partition(":")[2].strip() for line in lines if line.startswith("Version:")), "")
    return Vllm(version, folder.resolve())


def _unpacked(wheel: Path) -> Path:
    """The folder in the cache with the wheel's Python files, by their checksums. Raises FactError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            items = [item for item in archive.infolist() if item.filename.endswith(_KEPT)]
            if sum(item.file_size for item in items) > _MOST_BYTES:
                raise FactError(f"{wheel} holds more than {_MOST_BYTES >> 30} GiB of Python files")
            digest = hashlib.sha256(repr([(item.filename, item.CRC) for item in items]).encode())
            folder = fact_cache() / "wheels" / f"{wheel.stem}-{digest.hexdigest()[:12]}"
            if not folder.is_dir():
                folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                part = Path(tempfile.mkdtemp(dir=folder.parent))
                try:
                    archive.extractall(part, items)  # checks every CRC, and writes nothing outside of it
                    part.rename(folder)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        hint = "name a wheel (.whl) of vLLM, or a folder with its files"
        raise FactError(f"{wheel} is not a wheel that can be read: {error}", hint=hint) from error
    return folder
