"""Conversion as a whole: what is renamed, left open, kept on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.convert.convert import Converted, converted
from specserve.convert.reading import read
from specserve.diagnostics import Severity
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile


def convert(text: str, *, file: str = "serve.sh", folder: Path = Path("nowhere")) -> Converted:
    return converted(read(text, file=file, folder=folder)[0], origin=file)


def notes(text: str) -> list[str]:
    """What a conversion notes, apart from the network."""
    found = convert(text).notes
    return [note.text for note in found if note.path != "server.host"]


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Profile]:
    """The profile of a text."""

    def of(text: str, *, file: str = "serve.sh") -> Profile:
        path = tmp_path / "made.yaml"
        path.write_text(convert(text, file=file, folder=tmp_path).text, encoding="utf-8")
        return load_profile(path)

    return of


def test_a_key_becomes_the_name_of_its_variable(made: Callable[..., Profile]) -> None:
    assert made("vllm serve a/b --api-key sk-0123456789abcdefghij").server.api_key_env == "VLLM_API_KEY"
    assert made("vllm serve a/b --api-key $MY_KEY").server.api_key_env == "MY_KEY"
    assert made("VLLM_API_KEY=secret vllm serve a/b").server.api_key_env == "VLLM_API_KEY"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("vllm serve $MODEL", "target.model"),
        ("vllm serve org/m --served-model-name ${NAME}", "server.served_model_name"),
        ("vllm serve org/m --logits-processors a.b $C", "engine.logits_processors[]"),
        ("vllm serve org/m --max-num-seqs $N", "engine.max_num_seqs"),
        ("vllm serve org/m --spec-method eagle3 --spec-tokens 3 --spec-model $D", "speculation.model"),
        ("vllm serve org/m --chat-template '$HOME/x.jinja'", "frontend.chat_template"),
        ("""vllm serve org/m --hf-overrides "{\\"$KEY\\": 1}" """, "engine.hf_overrides.$KEY"),
        ("python -m sglang.launch_server --model-path $MODEL", "target.model"),
        ("vllm serve '<your model>'", "target.model"),
        ("vllm serve org/m --port <port> --seed 1", "server.port"),
        ("vllm serve org/m --data-parallel-address <ip>", "engine.data_parallel_address"),
        ("export IP=<your_ip>\nvllm serve org/m --host $IP", "server.host"),
    ],
)  # fmt: skip
def test_what_the_source_does_not_say_is_an_error_and_never_written(text: str, path: str) -> None:
    result = convert(text)
    (finding,) = result.unresolved
    assert f"`{path}`" in finding.message and finding.severity is Severity.ERROR
    said = result.text + finding.message + "".join(note.text for note in result.notes)
    assert not re.search("[\ue000-\uf8ff]", said)
    assert "$" not in "".join(line for line in result.text.splitlines() if not line.strip().startswith("#"))


NETWORK = "the source listens on every interface (no `--host`), this profile on 127.0.0.1 only"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm serve org/m", f"{NETWORK}; to open it, write `host: 0.0.0.0` under `server`, and `api_key_env: NAME`"),
        ("python -m vllm.entrypoints.openai.api_server --model org/m", NETWORK),
        ("vllm serve org/m --api-key $KEY", f"{NETWORK}; to open it, write `host: 0.0.0.0` under `server`"),
        ("vllm serve org/m --host ::", "every interface (`--host ::`)"),
        ("vllm serve org/m --host 127.0.0.1", None),
        ("vllm serve org/m --host 10.0.0.1 --api-key $KEY", None),
        ("vllm serve org/m --uds /tmp/x.sock", None),
        ("python -m sglang.launch_server --model-path org/m", None),
    ],
)  # fmt: skip
def test_a_change_of_the_network_is_noted_once(text: str, said: str | None) -> None:
    found = [note.text for note in convert(text).notes if note.path == "server.host"]
    assert len(found) == (said is not None)
    assert all(said is not None and said in text for text in found)


def test_nodes_of_one_executor_are_hardware_and_the_rank_is_for_up(made: Callable[..., Profile]) -> None:
    text = "vllm serve org/m -tp 8 -pp 2 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless"
    profile = made(text)
    assert profile.hardware and (profile.hardware.nodes, profile.hardware.count) == (2, 8)
    assert dict(profile.engine) == {"master_addr": "10.0.0.1"}
    assert "engine:" not in convert("vllm serve org/m -tp 8 -pp 2 --nnodes 2 --node-rank 1").text
    said = " ".join(note.text for note in convert(text).notes)
    assert "specserve up PROFILE --node-rank 1" in said and "`--headless` is left out" in said


def test_a_name_of_today_wins_over_an_earlier_one_and_the_loser_is_noted(
    made: Callable[..., Profile],
) -> None:
    config = '{"model": "org/new", "num_speculative_tokens": 3}'
    text = f"vllm serve org/m --speculative-config '{config}' --speculative-model org/old"
    profile = made(text)
    assert profile.speculation and profile.speculation.keys["model"] == "org/new"
    assert any("`--speculative-model` is left out" in note for note in notes(text))


@pytest.mark.parametrize(
    ("text", "engine", "frontend"),
    [
        (
            "vllm serve org/m --attention-config.use_fp4_indexer_cache true",
            {"attention_config": {"indexer_kv_dtype": "mxfp4"}},
            {},
        ),
        (
            "export VLLM_ATTENTION_BACKEND=FLASH_ATTN_VLLM_V1 VLLM_ALL2ALL_BACKEND=deepep_low_latency\n"
            "vllm serve org/m --num-redundant-experts 32 --eplb-window-size 100",
            {
                "attention_backend": "FLASH_ATTN",
                "all2all_backend": "deepep_low_latency",
                "eplb_config": {"num_redundant_experts": 32, "window_size": 100},
            },
            {},
        ),
        (  # vLLM lacks a key; a plug-in may bring a parser
            """vllm serve org/m --compilation-config '{"use_inductor": false, "mode": 3}' --tool-call-parser mine""",
            {"compilation_config": {"mode": 3}},
            {"tool_call_parser": "mine"},
        ),
    ],
)
def test_what_has_another_name_or_place_today_is_moved_there_with_a_note(
    text: str, engine: dict[str, object], frontend: dict[str, object], made: Callable[..., Profile]
) -> None:
    profile = made(text)
    assert (dict(profile.engine), dict(profile.frontend), profile.vllm) == (engine, frontend, None)
    assert notes(text)
