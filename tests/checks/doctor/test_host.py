"""The whole of a host: every reader has its say, and none can silence the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specserve.checks.doctor import host
from specserve.checks.doctor.host import host_lines
from specserve.checks.doctor.limits import Line, examined

CPU_ENGINE = {"CPU", "plug-in", "OpenMP", "compiler"}
READERS = {
    "engine_lines": {"Python", "vLLM", "torch"},
    "processor_lines": CPU_ENGINE,
    "device_lines": {"GPU", "driver"},
    "memory_line": {"memory"},
    "shared_memory_lines": {"/dev/shm"},
    "open_files_line": {"open files"},
    "folder_lines": {"cache", "state", "temp folder", "vLLM cache"},
    "hub_lines": {"Hub", "Hub token"},
    "read_driver": {"GPU", "driver", "/dev/shm"},
    "read_software": {"Python", "vLLM", "torch", "GPU", "driver", "memory", "/dev/shm", *CPU_ENGINE},
}
"""What each tells."""


def broken(*arguments: object, **keywords: object) -> None:
    raise OSError(5, "Input/output error")


def test_a_reader_that_fails_becomes_a_line_that_says_so() -> None:
    def half() -> list[Line]:
        raise ValueError

    (line,) = examined("x", half)
    assert (line.name, line.state, line.text) == ("x", "note", "could not be examined: ValueError")


@pytest.mark.parametrize("reader", READERS)
def test_one_broken_reader_leaves_the_others_their_lines(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {line.name for line in host_lines(state=tmp_path, ours=())}
    monkeypatch.setattr(host, reader, broken)
    rest = list(host_lines(state=tmp_path, ours=()))
    told = {line.name for line in rest if "could not be examined: OSError: [Errno 5]" in line.text}
    of_the_cpu_engine = reader in ("processor_lines", "memory_line")  # which may not be here
    assert told or of_the_cpu_engine
    assert whole - READERS[reader] <= {line.name for line in rest} - told


def test_a_host_is_examined_without_importing_the_engine_or_the_hub(tmp_path: Path) -> None:
    before = set(sys.modules)
    assert list(host_lines(state=tmp_path, ours=()))
    assert not {"torch", "vllm", "huggingface_hub", "openai"} & (set(sys.modules) - before)


def test_every_bad_line_has_a_fix_and_every_name_fits_its_column(tmp_path: Path) -> None:
    for line in host_lines(state=tmp_path, ours=()):
        assert line.fix or line.state != "bad"
        assert len(line.name) < 12
