"""The parent of a detached vLLM: waits for its end, writes down how it was, and calls for the tidying up.

Run as a program of its own (`python -I -S watcher.py`), on the standard library's smallest part: it stays in memory
for as long as the server. One JSON document on stdin: `{argv, env, log, exit, then}`; one on stdout.
"""

import json
import os
import signal
import sys
import time


def main() -> None:
    """Start the command of stdin in a new session, print its pid, wait, write how it ended, become `then`."""
    request = json.load(sys.stdin)
    if os.fork():
        return  # the command that started this needs no child of its own to wait for
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        # as files.append_own: a link is not followed, a pipe not waited for
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        log = os.open(request["log"], flags | os.O_APPEND, 0o600)
        pid = os.posix_spawnp(
            request["argv"][0],
            request["argv"],
            request["env"],
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nowhere, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
            setsigdef=(signal.SIGINT, signal.SIGHUP, signal.SIGTERM),
        )
    except OSError as error:
        _answer({"error": error.strerror})
        return
    os.close(log)
    _answer({"pid": pid, "watcher": os.getpid()})
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.chdir("/")  # it must not keep a file system busy
    then, path = request["then"], request["exit"]
    request.clear()  # the environment may hold a key: no longer than needed
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    try:
        descriptor = os.open(f"{path}~", flags | os.O_TRUNC, 0o600)
        os.write(descriptor, json.dumps({"code": code, "at_s": time.time()}).encode())
        os.close(descriptor)
        os.replace(f"{path}~", path)  # noqa: PTH105  # pathlib would double what stays in memory
    except OSError:
        pass  # the folder is gone or the disk full: the tidying up finds the pid dead all the same
    os.execv(then[0], then)  # noqa: S606


def _answer(content: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
