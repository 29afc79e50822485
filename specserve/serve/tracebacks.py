"""The exception that the tracebacks of a log come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specserve.serve.logs import LogLine

TRACEBACK = "Traceback (most recent call last):"
_MESSAGE_LINES = 80
"""How far below its class a message is looked for: a compiler quotes the kernel in between."""
_VLLM_FRAME = re.compile(
    r'^[ \t]*File "[^"\n]{0,400}?(vllm(?:/\w{1,60}){1,9}\.py)", line (\d+), in (\w+)', re.MULTILINE
)
_FRAME = re.compile(r'^[ \t]*File "[^"]+", line \d+, in ')
_NAMED = r"(?:[A-Za-z_]\w*\.)*\w{0,80}(?:Error|Exception|Failure|Exit|Interrupt|Fault|Expired"
_NAMED += r"|OutOfResources)"
_EXCEPTION = re.compile(rf"^(?P<name>{_NAMED})(?::(?P<message>.*))?$")
_LINK = re.compile(
    r"^The above exception was the direct cause"
    r"|^During handling of the above exception, another exception"
)
# what the engine says of a worker's exception (vllm 0.32, v1/executor/multiproc_executor.py)
_QUOTES = re.compile(r"^Worker failed with error '(?P<quoted>.*?)(?:', please check.*)?$")
# what the survivors say about a death elsewhere: never the root cause
_ECHO = re.compile(
    r"EngineDeadError|root cause above"
    r"|(?:stack ?trace|error)s? (?:\(above\)|above) for (?:the|more)"
    r"|Engine core initialization failed|Frontend process failed during engine core"
    r"|WorkerProc initialization failed|^RuntimeError: cancelled$|^SystemExit|KeyboardInterrupt"
    r"|CancelledError|^EOFError$|Executor failed|^(?:Connection|BrokenPipe|ConnectionReset)\w*Error"
    r"|ProcessDiedError|ActorDiedError|ncclRemoteError|^zmq\.error|^Exception: WorkerProc"
    r"|RemoteTraceback"
)


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception: its class and message, and the frames of its traceback, outermost first."""

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


def root_exception(lines: Sequence[LogLine]) -> Raised | None:
    """The exception at the root of the last failure that the lines tell; None without one.

    Workers write their lines between each other's, so each process is read on its own. In a chain
    the innermost exception with a message is the root, unless it reports another process's failure.
    """
    texts: dict[str, list[tuple[int, str]]] = {}
    for position, line in enumerate(lines):
        texts.setdefault(line.process, []).append((position, line.text))
    roots = [root for own in texts.values() for root in _roots(own)]
    return max(roots, key=lambda root: (not root[1].is_quoted, root[0]))[1] if roots else None


def _roots(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, Raised]]:
    """The root of each chain of tracebacks of one process, with the position of its last line."""
    chains: list[tuple[int, list[Raised]]] = []
    stack: list[str] = []
    is_linked = False
    texts = [text for _, text in lines]
    for at, (position, text) in enumerate(lines):
        if _LINK.match(text):
            is_linked = True
        elif TRACEBACK in text:
            stack = []
        elif _FRAME.match(text):
            stack.append(text.strip())
        elif match := _EXCEPTION.match(text):
            chain = chains.pop()[1] if is_linked and chains else []
            chain.append(_raised(match, texts, at, stack="\n".join(stack)))
            chains.append((position, chain))
            stack, is_linked = [], False
    for position, chain in chains:
        roots = [raised for raised in chain if not _ECHO.search(raised.text)]
        if roots:
            yield position, next((each for each in roots if not each.is_silent), roots[0])


def _raised(match: re.Match[str], texts: Sequence[str], at: int, *, stack: str) -> Raised:
    name, message = match["name"], (match["message"] or "").strip()
    if not message:
        above = [text.strip() for text in reversed(texts[max(0, at - 3) : at])]
        statement = next((text for text in above if set(text) - set("^~ ")), "")
        if _FRAME.match(statement) or TRACEBACK in statement:
            statement = ""
        is_silent = not statement.startswith("assert")
        return Raised(f"{name}: {statement}" if statement else name, stack, is_silent)
    quoted = _QUOTES.match(message)
    if quoted:
        name, message = "a worker's exception", quoted["quoted"]
    if message.endswith(":") or "validation error" in message:  # only the head of several lines
        message = _below(texts, at) or message
    return Raised(f"{name}: {message}", "" if quoted else stack, is_quoted=quoted is not None)


def _below(texts: Sequence[str], at: int) -> str:
    """The line of a message that says most: pydantic's, else the last one."""
    said = ""
    for text in texts[at + 1 : at + 1 + _MESSAGE_LINES]:
        if TRACEBACK in text or _LINK.match(text) or _EXCEPTION.match(text):
            break
        line = text.strip()
        if line.startswith("Value error, "):
            return line.removeprefix("Value error, ").partition(" [type=")[0]
        if set(line) - set("^~ "):
            said = line
    return said
