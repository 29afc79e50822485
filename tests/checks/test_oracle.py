"""Asking vLLM about a launch: what the child gets, what is kept, and what happens if it fails."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from specserve.checks.oracle import VllmQuestion, VllmToAsk, ask, named, questions_about, vllm_in
from specserve.checks.oraclechild import VllmVerdict
from specserve.checks.run import context_of
from specserve.errors import FactError
from specserve.hardware.accelerators import assume
from specserve.models.facts import ModelFacts, Tensor
from specserve.models.hub import read_model
from specserve.plan.launch import launch
from specserve.profile.schema import Profile
from specserve.vllm.versions import known_versions, table

Load = Callable[[str], Profile]
DEMO = Path(__file__).parents[2] / "demo"
MACHINE = assume("2xH100-80GB")
INSTALLED = VllmToAsk("0.33.0")
ECHO = """
import json, os, sys
with open(os.environ["ASKED"], "a") as log:
    for line in sys.stdin:
        asked = json.loads(line)
        models = {name: os.listdir(os.path.join(asked["folder"], name)) for name in os.listdir(asked["folder"])}
        configs = [open(os.path.join(asked["folder"], name, "config.json")).read() for name in models]
        if "build" in asked:
            log.write(json.dumps([sys.argv[1:], asked["argv"], models, configs, asked["build"], asked["count"]]))
            log.write("\\n")
            log.flush()
        said = {"effective": {"model_runner": "V2"}, "changed": [], "warnings": []}
        print(json.dumps({"id": asked["id"], **said}), flush=True)
"""


def answering(answer: dict[str, object], *, before: str = "") -> tuple[str, ...]:
    """A child that gives every question this answer."""
    each = f"print(json.dumps({{**json.loads({json.dumps(answer)!r}), 'id': json.loads(line)['id']}}), flush=True)"
    return sys.executable, "-c", f"import json, sys\n{before}\nfor line in sys.stdin: {each}"


SLEEPER = """
import os, subprocess, time
print(subprocess.Popen(["sleep", "600"]).pid, file=open(os.environ["ASKED"], "w"), flush=True)
time.sleep(600)
"""


@pytest.fixture
def question(profile: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> VllmQuestion:
    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    block = "{method: draft_model, model: org/draft, num_speculative_tokens: 3}"
    text = f"target: {{model: org/target}}\nspeculation: {block}\n"
    minor = known_versions()[-1]
    plan = launch(named(profile(text), draft=True), table=table(minor), platform="cuda")
    target, draft = (read_model(str(DEMO / name), offline=True) for name in ("target", "draft"))
    return VllmQuestion(plan, MACHINE, INSTALLED, target, draft)


def test_the_child_gets_the_launch_with_folders_that_hold_configurations_alone(
    question: VllmQuestion, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", ECHO)
    told: list[str] = []
    found = ask([question], command=command, before=lambda: told.append("asking"))
    basis = "vLLM 0.33.0, 2 x H100-80GB"
    assert found == [VllmVerdict(effective={"model_runner": "V2"}, basis=basis)]
    asked = (tmp_path / "asked").read_text()
    assert "NVIDIA H100-80GB" in asked and asked.endswith(", 2]\n")
    assert '"target", "--speculative-config"' in asked and '\\"model\\": \\"draft\\"' in asked
    assert '"target": ["config.json"]' in asked and '"draft": ["config.json"]' in asked
    nobody = (sys.executable, "-c", "raise SystemExit")
    again = ask([question], command=nobody, before=lambda: told.append("asking"))
    assert again == found and told == ["asking"]  # kept: nobody is asked twice


def test_one_child_answers_for_all_numbers_of_a_gpu_and_what_it_says_of_the_plainest_is_left_out(
    question: VllmQuestion, tmp_path: Path
) -> None:
    warn = """
import json, os, sys
open(os.environ["ASKED"], "a").write("x")
for line in sys.stdin:
    asked = json.loads(line)
    usual, new = ({"text": text, "at": text} for text in ("no NUMA here", "8 GPUs"))
    lines = [usual, new] if asked.get("count") == 8 else [usual]
    print(json.dumps({"id": asked["id"], "warnings": lines}), flush=True)
"""
    machines = ("1xH100-80GB", "8xH100-80GB", "2x4xH100-80GB", "1xL4-24GB")
    questions = [replace(question, machine=assume(name)) for name in machines]
    found = ask(questions, command=(sys.executable, "-c", warn))
    assert [verdict.warnings for verdict in found] == [(), ("8 GPUs",), ("8 GPUs",), ()]
    assert (tmp_path / "asked").read_text() == "xx"  # for each kind of GPU


def test_a_vllm_without_a_table_is_not_asked_about_what_specserve_adds(profile: Load) -> None:
    """Not every version has `--shutdown-timeout`, and the profile does not say it."""
    text = "target: {model: org/m}\nspeculation: {method: ngram, num_speculative_tokens: 3}\n"
    context = replace(context_of(profile(text)), machine=MACHINE)
    facts = ModelFacts("org/m", "hub", {})
    words = {}
    for version in ("0.28.0", "0.33.0"):
        vllm = VllmToAsk(version, Path("wheel"))
        words[version] = questions_about(context, {"target": facts}, vllm=vllm)[1].plan.argv
    assert "--shutdown-timeout" in words["0.33.0"] and "--shutdown-timeout" not in words["0.28.0"]
    assert {"--port", "--speculative-config"} <= set(words["0.28.0"])


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ("no torch here", "no torch here"),
        ("RuntimeError: Failed to infer device type, please set", "this vLLM is not for the platform"),
    ],
)
def test_a_child_that_fails_judges_nothing_and_is_named_with_its_last_words(
    question: VllmQuestion, last: str, told: str
) -> None:
    command = (sys.executable, "-c", f"raise SystemExit('{last}')")
    (found,) = ask([question], command=command)
    assert found.not_judged is not None
    assert found.not_judged.startswith(f"asking vLLM failed: {told}")


def test_a_child_that_hangs_is_ended_with_all_that_it_started(question: VllmQuestion, tmp_path: Path) -> None:
    (found,) = ask([question], command=(sys.executable, "-c", SLEEPER), limit_s=2)
    assert found.not_judged == "vLLM did not answer within 2 s"
    pid = int((tmp_path / "asked").read_text())
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def count(question: VllmQuestion, folder: Path) -> int:
    """How many questions the child got, after it was asked once more."""
    ask([question], command=(sys.executable, "-c", ECHO))
    return len((folder / "asked").read_text().splitlines())


def test_an_answer_is_asked_for_once_by_version_and_library_and_again_if_its_file_is_damaged(
    question: VllmQuestion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = replace(question, vllm=VllmToAsk("0.32.0"))
    assert [count(each, tmp_path) for each in (question, question, older)] == [1, 1, 2]
    for file in (tmp_path / "cache" / "oracle").iterdir():
        file.write_text("{")
    assert count(question, tmp_path) == 3
    for number, library in enumerate(("torch", "transformers"), start=4):
        place = tmp_path / library / f"{library}-5.0.0.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Name: {library}\nVersion: 5.0.0\n")
        monkeypatch.syspath_prepend(place.parent)
        assert [count(question, tmp_path), count(question, tmp_path)] == [number, number]
    folder = replace(question, vllm=VllmToAsk("0.34.1", tmp_path))  # it may be edited
    assert [count(folder, tmp_path), count(folder, tmp_path)] == [6, 7]


@pytest.mark.parametrize(
    "answer", [{"skipped": {"models": "no torch"}}, {"not_judged": "vLLM did not answer within 120 s"}]
)
def test_what_could_not_be_answered_is_asked_again(
    answer: dict[str, object], question: VllmQuestion, tmp_path: Path
) -> None:
    note = f"open({str(tmp_path / 'n')!r}, 'a').write('x')"
    for _ in range(2):
        (found,) = ask([question], command=answering({"effective": {}, **answer}, before=note))
        assert found.refused is None and (found.skipped or found.not_judged)
    assert (tmp_path / "n").read_text() == "xx"


def test_the_child_is_told_what_a_head_lacks(question: VllmQuestion, tmp_path: Path) -> None:
    tensors = {"embed_tokens.weight": Tensor("BF16", (512, 64)), "fc.weight": Tensor("BF16", (64, 192))}
    draft = ModelFacts("org/draft", "hub", {"auto_map": {"AutoConfig": "evil.Config"}}, tensors=tensors)
    command = (sys.executable, "-c", ECHO)
    head = replace(question, draft=draft, method="eagle3")
    ask([head], command=command)
    asked = (tmp_path / "asked").read_text()
    assert '"draft_lacks": ["lm_head"]' in asked
    assert "evil" not in asked


def test_a_folder_without_vllm_is_refused_and_one_with_it_says_its_version(tmp_path: Path) -> None:
    (tmp_path / "a.whl").touch()
    for place in (tmp_path, tmp_path / "a.whl"):
        with pytest.raises(FactError, match="does not contain vLLM") as caught:
            vllm_in(place)
        assert "unzip" in (caught.value.hint or "")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "vllm-0.34.1.dist-info").mkdir()
    (tmp_path / "vllm-0.34.1.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.34.1\n")
    found = vllm_in(tmp_path)
    assert (found.version, found.source) == ("0.34.1", tmp_path)


def test_a_refusal_of_a_part_of_a_configuration_is_not_held_against_the_profile(
    question: VllmQuestion,
) -> None:
    child = answering({"refused": "Model config must specify `mask_token_id`"})
    published = replace(question, target=replace(question.target, is_whole=False))
    for asked, is_refused in ((question, True), (published, False)):
        (found,) = ask([asked], command=child)
        assert (found.refused is not None) is is_refused
    assert "mask_token_id" in (found.not_judged or "")
