"""The exception that a log's tracebacks come from: the innermost one that says something."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specserve.serve.logs import LogLine

TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the log: its class and message, and the frames of its traceback, outermost first."""

    text: str
    stack: str = ""
    is_silent: bool = False
    """Whether it has no message of its own."""
    is_quoted: bool = False
    """Whether only another process reports it."""

    @property
    def place(self) -> str | None:
        """The innermost file of vLLM in the stack, with its line and function."""
        frames = _VLLM_FRAME.findall(self.stack)
        return f"{frames[-1][0]}:{frames[-1][1]}, in {frames[-1][2]}" if frames else None


_VLLM_FRAME = re.compile(r'^\s*File ".*?(vllm(?:/\w+)+\.py)", line (\d+), in (\w+)', re.MULTILINE)
_FRAME = re.compile(r'^\s*File "[^"]+", line \d+, in ')
_NAMED = r"(?:[A-Za-z_]\w*\.)*[A-Z]?\w*(?:Error|Exception|Failure|Exit|Interrupt|Fault|Expired)"
_EXCEPTION = re.compile(rf"^(?P<name>{_NAMED})(?::(?P<message>.*))?$")
# A class of a module, and the first line below the frames that is not indented: whatever the class is called.
_QUALIFIED = re.compile(r"^(?P<name>(?:[a-z_]\w*\.){2,}[A-Z]\w*):(?P<message> .*)$")
_AFTER_FRAMES = re.compile(r"^(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::(?P<message>.*))?$")
_REPR = re.compile(rf"""^(?P<name>{_NAMED})\((?P<quote>["'])(?P<message>.+)(?P=quote),?\)""")
_CAUSE = re.compile(r"^The above exception was the direct cause")
_CONTEXT = re.compile(r"^During handling of the above exception, another exception")
_IGNORED = re.compile(r"^Exception ignored in")
# What the engine says of a worker's exception. (vllm 0.32, v1/executor/multiproc_executor.py)
_QUOTES = re.compile(r"^Worker failed with error '(?P<quoted>.*?)(?:', please check.*)?$")
_LOOKUP = re.compile(r"^(?:KeyError|IndexError|StopIteration|(?:_?queue\.)?Empty)\b")
# What the survivors say about a death elsewhere: never the root cause.
_ECHO = re.compile(
    r"EngineDeadError|root cause above|(?:stack ?trace|error)s? (?:\(above\)|above) for (?:the|more)"
    r"|Engine core initialization failed|Frontend process failed during engine core"
    r"|WorkerProc initialization failed|^RuntimeError: cancelled$|^SystemExit|KeyboardInterrupt"
    r"|CancelledError|^EOFError$|Executor failed|^(?:Connection|BrokenPipe|ConnectionReset)\w*Error"
    r"|ProcessDiedError|ActorDiedError|ncclRemoteError|^zmq\.error|^Exception: WorkerProc|RemoteTraceback"
)
_MESSAGE_LINES = 80
"""How far below its class the text of an exception is looked for: a compiler quotes the kernel in between."""


def root_exception(lines: Sequence[LogLine]) -> Raised | None:
    """The exception at the root of the last failure that the lines tell; None without one.

    Workers write their lines between each other's, so each process is read on its own. In a chain the
    innermost exception with a message is the root; one that only reports the failure of another process is
    none, and one raised while a failed look-up was handled comes before the look-up.
    """
    texts: dict[str, list[tuple[int, str]]] = {}
    for position, line in enumerate(lines):
        texts.setdefault(line.process, []).append((position, line.text))
    roots = [root for own in texts.values() for root in _roots(own)]
    return max(roots, key=lambda root: (not root[1].is_quoted, root[0]))[1] if roots else None


def _roots(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, Raised]]:
    """The root of each chain of tracebacks of one process, with the position of the chain's end."""
    chain: list[Raised] = []
    stack: list[str] = []
    link: str | None = None
    end = 0
    is_ignored = False
    texts = [text for _, text in lines]
    for at, (position, text) in enumerate(lines):
        if _CAUSE.match(text) or _CONTEXT.match(text):
            link = text
        elif TRACEBACK in text:
            stack = []
        elif _IGNORED.match(text):
            is_ignored = True
        elif _FRAME.match(text):
            stack.append(text.strip())
        elif match := _exception(text, texts[at - 1] if at else "", in_stack=bool(stack)):
            raised = _raised(match, texts, at, stack="\n".join(stack))
            if link is None and chain:
                if root := _root(chain):
                    yield end, root
                chain = []
            is_next = bool(link and _CONTEXT.match(link) and chain and _LOOKUP.match(chain[-1].text))
            if not is_ignored:
                chain.insert(len(chain) - is_next, raised)
            stack, link, end, is_ignored = [], None, position, False
    if chain and (root := _root(chain)):
        yield end, root


def _root(chain: Sequence[Raised]) -> Raised | None:
    roots = [raised for raised in chain if not _ECHO.search(raised.text)]
    return next((raised for raised in roots if not raised.is_silent), roots[0] if roots else None)


def _exception(text: str, before: str, *, in_stack: bool) -> re.Match[str] | None:
    match = _EXCEPTION.match(text) or _QUALIFIED.match(text)
    if match is None and in_stack and before[:1].isspace():
        match = _AFTER_FRAMES.match(text)
    return match


def _raised(match: re.Match[str], texts: Sequence[str], at: int, *, stack: str) -> Raised:
    name, message = match["name"], (match["message"] or "").strip()
    if not message:
        statement = _statement(texts, at)
        is_silent = not statement.startswith("assert")
        return Raised(f"{name}: {statement}" if statement else name, stack, is_silent)
    quoted = _QUOTES.match(message)
    if quoted:
        name, message = "a worker's exception", quoted["quoted"]
    if message.endswith(":") or "validation error" in message:  # only the head of a message of several lines
        message = _below(texts, at) or message
        if found := _REPR.match(message):
            name, message = found["name"], found["message"]
    return Raised(f"{name}: {message}", "" if quoted else stack, is_quoted=quoted is not None)


def _statement(texts: Sequence[str], at: int) -> str:
    """The source line that raised an exception without a message."""
    for text in reversed(texts[max(0, at - 3) : at]):
        if _FRAME.match(text) or TRACEBACK in text:
            return ""
        if text.strip() and not set(text.strip()) <= set("^~ "):
            return text.strip()
    return ""


def _below(texts: Sequence[str], at: int) -> str:
    """The line of a message that says most: a quoted exception, what pydantic says, else the last one."""
    said = ""
    for text in texts[at + 1 : at + 1 + _MESSAGE_LINES]:
        if TRACEBACK in text or _CAUSE.match(text) or _CONTEXT.match(text) or _EXCEPTION.match(text):
            break
        line = text.strip()
        if _REPR.match(line):
            return line
        if line.startswith("Value error, "):
            return line.removeprefix("Value error, ").partition(" [type=")[0]
        if line and not set(line) <= set("^~ "):
            said = line
    return said
