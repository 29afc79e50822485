"""`make demo` does not start a second server, and says how to ask the first."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import demo as demo_script
import pytest

ROOT = Path(__file__).resolve().parents[2]


class Models(BaseHTTPRequestHandler):
    """Answers as vLLM's /v1/models does."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "demo", "object": "model"}]}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr(demo_script, "PROFILE", tmp_path / "demo.yaml")
    return demo_script


def test_a_demo_that_serves_already_says_so(
    demo: ModuleType, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.PROFILE.write_text(f"target: {{model: x}}\nserver: {{port: {port}}}\n")
    demo.main([])
    said = capsys.readouterr().out
    assert f"already serves on http://127.0.0.1:{port}" in said
    assert "specserve ask 'def " in said and f"--server http://127.0.0.1:{port}\n" in said


def test_a_port_of_another_program_is_said_with_the_way_to_another_one(
    demo: ModuleType, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.PROFILE.write_text("target: {model: x}\nserver: {served_model_name: mine}\n")
    with pytest.raises(SystemExit, match="make demo PORT=8001"):
        demo.main(["--port", str(port)])
    captured = capsys.readouterr()
    assert captured.err == f"error: port {port} is taken by another program\n"
    assert captured.out == ""  # no line to type before it serves


def test_the_port_of_make_is_the_port_of_the_server(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.PROFILE.write_text("target: {model: x}\n")
    became: list[list[str]] = []
    monkeypatch.setattr(demo.os, "execve", lambda _path, command, _env: became.append(command))
    monkeypatch.setattr(demo, "ROOT", demo.PROFILE.parent)
    monkeypatch.setattr(demo.shutil, "which", lambda _name: None)
    monkeypatch.chdir(demo.PROFILE.parent)
    demo.main(["--port", "0"])
    assert became[0][1:] == ["up", "demo.yaml", "--port", "0"]
