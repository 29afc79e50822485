"""Settings that the tests of conversion share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings

Ask = Callable[[Sequence[Sequence[str]]], list[dict[str, Any]]]

settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def ask_vllm() -> Iterator[Ask]:
    """Asks the installed vLLM's parser about command lines, each the words after `vllm serve`; one child for all."""
    command = [sys.executable, "-m", "tests.parser_child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        requests, replies = child.stdin, child.stdout
        assert requests and replies

        def ask(lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
            answers = []
            for number, argv in enumerate(lines):
                requests.write(json.dumps({"id": number, "argv": list(argv)}) + "\n")
                requests.flush()
                answers.append(json.loads(replies.readline()))
            assert [answer["id"] for answer in answers] == list(range(len(lines)))
            return answers

        yield ask
        requests.close()
    assert child.returncode == 0
