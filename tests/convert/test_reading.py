"""Files of any known form: what each says about the engines that it starts, within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.convert.launch import Launch
from specserve.convert.reading import read
from specserve.errors import UsageError


def found(text: str, *, file: str = "serve.sh") -> list[Launch]:
    return read(text, file=file, folder=Path("nowhere"))


def models(text: str, *, file: str = "serve.sh") -> list[object]:
    return [given.settings["model"].node.value for given in found(text, file=file)]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve a/b",
        "vllm serve --model a/b",
        "vllm serve --seed 1 a/b",
        "python -m vllm.entrypoints.openai.api_server --model a/b",
        "python3 vllm/entrypoints/openai/api_server.py --model=a/b",
        "sudo docker run --rm --name vllm -p 8000:8000 vllm/vllm-openai:v0.9 --model a/b",
        'docker run --name vllm-server --env-host --unknown-option 1 "$IMAGE" --model a/b',
        "docker container run -itd -p8000:8000 --gpus all --read-only vllm/vllm-openai a/b",
        "docker run --env=M=a/b -eN=1 --name=x vllm/vllm-openai bash -c 'vllm serve $M'",
        "docker create --gpus all -v /m:/m vllm/vllm-openai a/b",
        "podman run -v /m:/m docker.io/vllm/vllm-openai:latest a/b --seed 1",
        "docker run --entrypoint vllm vllm/vllm-openai serve a/b",
        "docker run vllm/vllm-openai bash -c 'vllm serve a/b'",
        "nohup env A=1 vllm serve a/b > log 2>&1 &",
        "CUDA_VISIBLE_DEVICES=0 uv run vllm serve a/b",
        "srun --gpus 4 bash -lc \"vllm serve a/b\"",
        "python -m sglang.launch_server --model-path a/b",
        "$ vllm serve a/b",
        'docker run --entrypoint "" "$IMAGE" vllm serve a/b',
        'IMAGE=vllm/vllm-openai\ndocker run --rm --entrypoint "" "$IMAGE" vllm serve a/b',
        "docker run -e M=a/b vllm/vllm-openai bash -c 'vllm serve $M'",
        """bash -c 'vllm serve "$@"' -- a/b""",
        "vllm serve a/b > log.txt 2>&1",
        "docker run lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path a/b",
    ],
)  # fmt: skip
def test_every_way_to_start_one_is_seen(text: str) -> None:
    (model,) = [
        (given.settings.get("model") or given.settings["model_path"]).node.value for given in found(text)
    ]
    assert model == "a/b"


@pytest.mark.parametrize(
    "text",
    [
        "vllm bench serve --model a/b",
        "docker pull vllm/vllm-openai",
        "pip install vllm",
        "echo vllm serve a/b",
        "docker run vllm/vllm-openai bash start.sh",
        "docker run vllm/vllm-openai 23",
    ],
)
def test_what_starts_none_is_passed_over(text: str) -> None:
    with pytest.raises(UsageError, match="that starts vLLM"):
        found(text)


def test_the_form_is_told_by_the_name_or_else_by_the_text() -> None:
    assert models("os.system('vllm serve a/b')", file="x.py") == ["a/b"]
    assert models("run('vllm serve a/b'.split())", file="x.py") == ["a/b"]
    python, yaml = "LLM(model='a/b')\n", "services: {x: {image: vllm/vllm-openai, command: --model a/b}}\n"
    assert models(python, file="stdin") == models(python, file="x.py") == ["a/b"]
    assert models(yaml, file="stdin") == models(yaml, file="x.yml") == ["a/b"]


def test_exported_variables_are_those_of_the_engine_but_not_those_of_the_script() -> None:
    text = "export MODEL=a/b VLLM_LOGGING_LEVEL=DEBUG\nexport PATH=/x:$PATH\nHF_HOME=/h vllm serve $MODEL"
    (given,) = found(text)
    assert {name: word.text for name, word in given.env.items()} == {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "HF_HOME": "/h",
    }


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("x.sh", "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60 + "vllm serve $A"),
        ("x.sh", "vllm serve a/b " + "$(" * 50_000),
        ("x.sh", "vllm serve a/b --speculative-config '" + "[" * 50_000),
        ("x.py", "\n".join(f"a{i} = [a{i - 1}, a{i - 1}]" for i in range(200)) + "\nLLM('m', x=a199)"),
        ("x.yaml", "image: vllm/vllm-openai\na: &a [x]\n" + "b: [" + "*a," * 10_000 + "]"),
    ],
)
def test_what_grows_without_bounds_ends(file: str, text: str) -> None:
    try:
        for given in found(text, file=file):
            assert sum(len(str(setting.node.value)) for setting in given.settings.values()) < 10_000_000
    except UsageError as error:
        assert error.message


HELM = "decode:\n  containers:\n  - modelCommand: vllmServe\n    args: [--seed, '1']\n"
SERVICE = "kind: InferenceService\nspec: {predictor: {model: {runtime: vllm, storageUri: hf://a/b}}}\n"
INSIDE = "cat > run.sh <<'END'\nvllm serve org/m --port 9000\nEND\nbash run.sh\n"
CONFIG_MAP = "kind: ConfigMap\ndata:\n  run.sh: |\n    MODEL=org/m\n    vllm serve $MODEL\n"
IS_HELM = "` contains Helm values or templates, which specserve cannot"


@pytest.mark.parametrize(
    ("text", "file", "message"),
    [
        (INSIDE, "make.sh", "specserve found nothing in `"),
        (CONFIG_MAP, "map.yaml", "specserve found nothing in `"),
        (SERVICE, "x.yaml", "` contains an InferenceService, whose command its ServingRuntime"),
        (HELM, "x.yaml", IS_HELM),
        ("args: {{ .Values.args }}: x", "x.yaml", IS_HELM),
    ],
)
def test_a_form_that_is_not_read_is_refused_in_one_sentence(text: str, file: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        found(text, file=file)
    assert error.value.hint


def test_a_variable_without_a_default_is_open_in_quotes_and_taken_as_empty_without_them() -> None:
    (given,) = found('RANK=${RANK:-}\nvllm serve org/m --data-parallel-start-rank "$RANK" $RANK')
    assert "RANK" in str(given.settings["data_parallel_start_rank"].node.value)
    assert [note.text for note in given.notes] == [
        "the profile has the script's defaults of `$RANK`, not the environment's"
    ]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("vllm serve a/b --seed 1\n--port 9", "`--port` is read as part of the command above"),
        ("numactl -N 0 vllm serve a/b", "`numactl -N 0` before the engine is left out"),
        ("A=b apt-get install x\nvllm serve a/b", "left out: `A=b apt-get install x`"),
        ("pip install x\nvllm serve a/b", "set-up before the launch is left out: `pip install x`"),
        ("export PATH=/x:$PATH\nvllm serve a/b", "`PATH` is left out"),
        (
            "export $(xargs < .env)\nvllm serve a/b",
            "the variables that `export $(xargs < .env)` sets are left out",
        ),
        ("f() {\nvllm serve a/b\n}", "nothing in the source calls its function `f`"),
        ('vllm serve a/b "$@"', "the script's own arguments, `$@`, are taken as empty"),
    ],
)
def test_what_is_assumed_or_left_out_is_noted(text: str, note: str) -> None:
    (given,) = found(text)
    assert any(note in item.text for item in given.notes)


def test_a_file_of_arguments_in_a_container_is_the_one_that_is_mounted_there(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("model: a/b\n")
    text = (
        'FILE="$(pwd)/args.yaml"\ndocker run -v "$FILE:/etc/v.yaml:ro" vllm/vllm-openai --config /etc/v.yaml'
    )
    (given,) = read(text, file="x.sh", folder=tmp_path)
    assert given.settings["model"].node.value == "a/b" and not given.unresolved
    (other,) = read(text.replace(":/etc/v.yaml:ro", ":/srv/v.yaml"), file="x.sh", folder=tmp_path)
    assert "the source's container has its arguments in `/etc/v.yaml`" in other.unresolved[0].message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm serve a/b --config missing.yaml", "cannot read the arguments in `missing.yaml`"),
        ("vllm serve a/b --config $CONFIG", "does not say what `$CONFIG` is"),
        ("vllm serve a/b --enforce-eager $MORE", "does not say what `$MORE` is"),
        ("vllm serve a/b --api-key $KEY $MORE --port 9000", "does not say what `$MORE` is"),
        (
            'MORE=()\nif x; then MORE+=(-v); fi\nvllm serve a/b --api-key k "${MORE[@]}"',
            "adds `-v` only if `x`",
        ),
    ],
)
def test_arguments_that_cannot_be_known_are_refused(text: str, message: str) -> None:
    (given,) = found(text)
    assert any(message in finding.message for finding in given.unresolved)
    assert "config" not in given.settings


def test_a_word_of_no_option_is_never_the_model_of_an_engine_that_has_one() -> None:
    (given,) = found("python -m sglang.launch_server --model-path a/b --tp 2 4")
    assert "model" not in given.settings and any(
        "`4` belongs to no option" in finding.message for finding in given.unresolved
    )
    assert models("vllm serve --model a/b --quantization fp8 c") == ["a/b"]
