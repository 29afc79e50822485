"""`specserve bench` as a user meets it, as far as nothing is started: plans, options, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_result import example

from specserve.cli.app import _run
from specserve.diagnostics import Notices
from specserve.measure.bench.passes import create
from specserve.measure.bench.plan import BenchRequest, named, plan_bench
from specserve.report.bench import rendered
from tests.cli.test_watch import detached

ROOT = Path(__file__).resolve().parents[2]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The small demo pair with an alternative."""
    file = tmp_path / "pair.yaml"
    file.write_text(
        f"target: {{model: {ROOT / 'demo' / 'target'}, max_model_len: 512}}\n"
        f"speculation: {{method: draft_model, model: {ROOT / 'demo' / 'draft'}, num_speculative_tokens: 4}}\n"
        "alternatives: {lookup: {method: ngram, num_speculative_tokens: 3}}\n"
        "engine: {enforce_eager: true, kv_cache_memory_bytes: 256M, max_num_seqs: 8}\n"
        "hardware: {accelerator: cpu}\n"
    )
    return file


def told(arguments: list[str], capsys: Captured, *, code: int = 0) -> str:
    """What a command line printed: stdout where it was done, stderr where not."""
    assert _run(["bench", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def in_line(text: str) -> str:
    return " ".join(text.split())


def test_a_dry_run_says_variants_launches_points_and_minutes(profile: Path, capsys: Captured) -> None:
    text = told([str(profile), "--dry-run", "--quick"], capsys)
    assert "nothing is started" in text
    for word in ("baseline", "profile", "lookup", "ngram K=3", "no speculation"):
        assert word in text
    assert "chat, concurrency 1, temperature 0: 18 requests" in text
    # 3 launches of 30 s, and 3 x 2 x 18 requests of 48 tokens at 16 tokens/s
    assert "about 7 min (assumed, not measured" in in_line(text)
    assert max(map(len, text.splitlines())) <= 120


def test_a_request_rate_takes_the_place_of_the_concurrencies(profile: Path, capsys: Captured) -> None:
    text = told([str(profile), "--dry-run", "--request-rate", "0.5,2", "-w", "chat"], capsys)
    assert "chat, request rate 0.5, temperature 0: 100 requests" in text
    assert "request rate 2, temperature 0: 325 requests" in text and "concurrency" not in text


def test_settings_are_for_the_profile_and_not_for_what_it_is_compared_with(profile: Path) -> None:
    other = profile.with_name("other.yaml")
    other.write_text(profile.read_text())
    request = BenchRequest(
        str(profile), others=(str(other),), alternatives=("baseline",), settings=("target.max_model_len=256",)
    )
    variants = plan_bench(request, starts=False, notices=Notices()).variants
    lengths = {each.name: each.plan.engine_kwargs["max_model_len"] for each in variants if each.plan}
    assert lengths == {"baseline": 256, "profile": 256, "other": 512}


@pytest.mark.parametrize(
    ("quick", "together", "asked", "launches"),
    [(False, True, None, 2), (True, False, None, 1), (True, False, 4, 4)],
)
def test_variants_that_run_one_after_another_are_launched_twice_or_as_often_as_is_asked(
    profile: Path, quick: bool, together: bool, asked: int | None, launches: int
) -> None:
    request = BenchRequest(str(profile), quick=quick, alternatives=("baseline",), launches=asked)
    plan = plan_bench(request, starts=False, together=together, notices=Notices())
    assert plan.launches == launches and len(plan.sessions) == (launches if together else 2 * launches)


def test_running_servers_are_not_launched_again(capsys: Captured) -> None:
    arguments = ["127.0.0.1:9001", "--with", "again=127.0.0.1:9001", "--launches", "4", "--dry-run"]
    assert "`--launches` cannot start servers again" in in_line(told(arguments, capsys, code=2))


def test_files_whose_names_have_an_equals_sign_are_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("k=4.yaml", "4.yaml", "lr=1/p.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    others = ("k=4.yaml", "lr=1/p.yaml", "new=4.yaml", "new=k=4.yaml", "u=http://h:1/?a=b")
    assert [named(each) for each in others] == [
        (None, "k=4.yaml"), (None, "lr=1/p.yaml"), ("new", "4.yaml"), ("new", "k=4.yaml"), ("u", "http://h:1/?a=b")
    ]  # fmt: skip


def test_alternatives_can_be_chosen_or_left_out(profile: Path, capsys: Captured) -> None:
    assert "lookup" not in told([str(profile), "--dry-run", "--alternative", "baseline"], capsys)
    assert "lookup" in told([str(profile), "--dry-run", "--alternative", "lookup"], capsys)
    error = told([str(profile), "--dry-run", "--alternative", "lokup"], capsys, code=2)
    assert "has no alternative `lokup`: it has `lookup`" in in_line(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no profile is given"),
        (["-c", "1,x"], "`--concurrency` is not a list of numbers"),
        (["-c", "0"], "each value must be 1 to 4096"),
        (["-t", "3"], "each value must be 0 to 2"),
        (["--request-rate", "0"], "`--request-rate` is 0, but each value must be 0.01 to 1000"),
        (["--request-rate", "1", "-c", "4"], "`--concurrency` and `--request-rate` cannot be combined"),
        (["--budget", "soon"], "`--budget` is not a time"),
        (["-w", "cod"], "is neither a workload nor a file"),
        (["-w", "-"], "`bench` cannot read from stdin"),
        (["--format", "json"], "`--dry-run` and `--format` cannot be combined"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str], message: str, profile: Path, capsys: Captured
) -> None:
    whole = [str(profile), "--dry-run", *arguments] if arguments else []
    error = in_line(told(whole, capsys, code=2))
    assert message in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("form", "beginning"),
    [
        ("text", "profile: pays at 3, inconclusive at 2"),
        ("markdown", "### Bench"),
        ("html", "<!doctype"),
        ("json", '{\n  "version": 1'),
    ],
)
def test_a_run_is_shown_again_in_any_form(
    form: str, beginning: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "result.json").write_text(rendered(example(), form="json"), encoding="utf-8")
    assert _run(["bench", "--show", str(tmp_path), "--format", form]) == 0
    stdout, stderr = capsys.readouterr()
    assert stdout.startswith(beginning) and stderr == ""


def test_what_is_shown_takes_no_options_of_a_measurement(tmp_path: Path, capsys: Captured) -> None:
    assert "cannot read `nowhere`: No such file" in in_line(told(["--show", "nowhere"], capsys, code=2))
    for more in (["-c", "4"], ["--with", "x"], ["-o", "b"], ["demo.yaml"]):
        said = in_line(told(["--show", str(tmp_path), *more], capsys, code=2))
        assert "`--show` measures nothing" in said and "hint: leave" in said


def test_options_of_a_profile_do_not_go_with_a_server_that_runs(capsys: Captured) -> None:
    arguments = ["http://127.0.0.1:1", "--with", "b=http://127.0.0.1:2", "--dry-run"]
    assert "http://127.0.0.1:2" in told(arguments, capsys)
    error = told([*arguments, "--set", "target.dtype=float32"], capsys, code=2)
    assert "`--set` and `--alternative` are for a profile" in in_line(error)
    assert "two variants are named `" in in_line(
        told(["http://127.0.0.1:1", "--with", "127.0.0.1:1", "--dry-run"], capsys, code=2)
    )


def test_detached_servers_are_taken_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    detached("http://127.0.0.1:9", name="one")
    detached("http://127.0.0.1:10", name="two")
    text = told(["one", "--with", "new=two", "--dry-run"], capsys)
    assert "http://127.0.0.1:9" in text and "new" in text and "http://127.0.0.1:10" in text


def test_a_server_that_does_not_answer_is_named(tmp_path: Path, capsys: Captured) -> None:
    run = tmp_path / "run"
    arguments = ["http://127.0.0.1:9", "--with", "b=http://127.0.0.1:10", "-o", str(run)]
    said = in_line(told(arguments, capsys, code=2))
    assert "nothing listens at http://127.0.0.1:9" in said and "--resume" not in said


def test_a_run_is_resumed_as_it_was_asked_for(tmp_path: Path, capsys: Captured) -> None:
    error = told(["--resume", str(tmp_path), "--quick"], capsys, code=2)
    assert "continues a run with the options that it began with" in in_line(error)
    error = in_line(told(["--resume", str(tmp_path), "-o", "x"], capsys, code=2))
    assert "`--resume` and `--output` cannot be combined" in error
    assert "is not a run of `specserve bench`" in in_line(told(["--resume", str(tmp_path)], capsys, code=2))
    with create(tmp_path / "run", {"asked": {"profile": 1}, "together": True}):
        pass
    error = told(["--resume", str(tmp_path / "run")], capsys, code=2)
    assert "` is not a run of `specserve bench`" in in_line(error)


def test_what_nobody_names_is_measured_as_usual_whatever_is_promised(profile: Path) -> None:
    profile.write_text(profile.read_text() + "expect: [{workload: mt-bench, min_speedup: 1.2}]\n")
    found = plan_bench(BenchRequest(str(profile)), starts=False, notices=Notices()).points
    usual = [(name, load) for name in ("chat", "code") for load in (1, 4)]
    assert [(each.workload, each.concurrency) for each in found] == usual
