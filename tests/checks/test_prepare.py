"""From a path and options to a plan: which vLLM it is for, and what stops it before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.checks.prepare import prepare
from specserve.errors import FactError, ProfileError
from specserve.plan import launch
from specserve.plan.host import Host
from specserve.plan.launch import LaunchOptions
from specserve.report.findings import failure
from specserve.vllm import versions
from specserve.vllm.versions import Installed

Write = Callable[..., Path]
HOST = Host(
    program=("/v/vllm", "serve"), plugin=False, openmp=None, cpus=(0, 1),
    numa_nodes=1, capacity_bytes=2**33, compiler=None,
)  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this machine another one, with the vLLM that is named, or none."""

    def become(version: str | None, *, facts: Host = HOST) -> None:
        platform = "cpu" if version and "+cpu" in version else "cuda"
        found = Installed(version, platform, "vllm", Path("/v")) if version else None
        monkeypatch.setattr(versions, "installed", lambda: found)
        monkeypatch.setattr(launch, "this_host", lambda: facts)

    return become


def test_without_a_vllm_nothing_can_start_but_a_plan_can_be_seen(
    write: Write, machine: Callable[..., None]
) -> None:
    machine(None)
    file = str(write("target: {model: a/b}"))
    with pytest.raises(FactError, match="vLLM is not installed in specserve's environment") as caught:
        prepare(file)
    assert "make setup" in str(caught.value.hint)
    assert prepare(file, LaunchOptions(starts=False))[1].vllm == "0.33"


def test_the_rules_say_more_than_what_cannot_be_planned(write: Write, machine: Callable[..., None]) -> None:
    machine(None)
    file = str(write("target: {model: a/b}\nserver: {host: 0.0.0.0}"))
    with pytest.raises(ProfileError) as caught:
        prepare(file)
    assert "SD108" in [item.code for item in caught.value.findings]
    with pytest.raises(FactError, match="vLLM is not installed in specserve's environment"):
        prepare(file, LaunchOptions(check=False))


def test_the_installed_vllm_must_be_in_the_range_of_what_starts(
    write: Write, machine: Callable[..., None]
) -> None:
    machine("0.33.0")
    file = str(write('target: {model: a/b}\nvllm: "<0.33"'))
    with pytest.raises(
        FactError, match=r"p\.yaml:2:7: vLLM 0\.33\.0 is installed, and the profile is for `<0\.33`"
    ):
        prepare(file)
    assert prepare(file, LaunchOptions(starts=False))[1].vllm == "0.32"


def test_port_zero_becomes_a_free_one_where_it_starts(write: Write, machine: Callable[..., None]) -> None:
    machine("0.33.0")
    file = str(write("target: {model: a/b}\nserver: {port: 0}"))
    assert prepare(file)[1].port > 0
    assert prepare(file, LaunchOptions(starts=False))[1].port == 0
    assert prepare(file, LaunchOptions(port=4711))[1].port == 4711


@pytest.mark.parametrize("installed", ["0.32.0+cpu", "0.33.0", None])
@pytest.mark.parametrize(("named", "platform"), [("H100-80GB", "cuda"), ("cpu", "cpu")])
def test_a_plan_is_for_the_hardware_that_the_profile_names(
    named: str, platform: str, installed: str | None, write: Write, machine: Callable[..., None]
) -> None:
    machine(installed, facts=replace(HOST, openmp="/v/libiomp5.so"))
    says = str(write(f"target: {{model: a/b}}\nhardware: {{accelerator: {named}}}", "says.yaml"))
    _, made = prepare(says, LaunchOptions(starts=False))
    assert made.platform == platform
    if platform == "cuda":
        assert "LD_PRELOAD" not in made.env and "--kv-cache-memory-bytes" not in made.argv


def test_a_missing_compiler_is_told_before_half_a_minute_is_lost(
    write: Write, machine: Callable[..., None]
) -> None:
    machine("0.32.0+cpu")
    file = str(write("target: {model: a/b}"))
    with pytest.raises(ProfileError) as caught:
        prepare(file)
    assert caught.value.exit_code == 1 and "no C++ compiler" in caught.value.message
    assert "install g++" in failure(caught.value)
    assert prepare(file, LaunchOptions(starts=False))
    assert prepare(file, LaunchOptions(check=False))
    assert prepare(file, LaunchOptions(settings=("engine.enforce_eager=true",)))
    machine("0.32.0+cpu", facts=replace(HOST, compiler="/usr/bin/g++"))
    assert prepare(file)
    machine("0.33.0")
    assert prepare(file)


def test_an_error_is_shown_once_and_names_the_way_round(write: Write, machine: Callable[..., None]) -> None:
    machine("0.33.0")
    file = str(write("target: {model: a/b}\nserver: {host: 0.0.0.0}"))
    with pytest.raises(ProfileError, match="did not pass its check: 1 error") as caught:
        prepare(file)
    assert caught.value.hint == "`specserve up --no-check` starts it unchecked"
    assert prepare(file, LaunchOptions(check=False))[1].host == "0.0.0.0"
