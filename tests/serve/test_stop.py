"""Requests to stop, as signals make them."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from specserve.serve.process import StopRequest, stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_becomes_a_request_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert not stop.wait(0)
        os.kill(os.getpid(), number)
        assert stop.wait(5)
        assert stop.signal == number
    assert signal.getsignal(number) is before


def test_the_first_signal_is_remembered_and_the_second_counts() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
        assert (stop.signal, stop.count) == (signal.SIGINT, 2)


def test_a_closing_terminal_that_hangs_up_twice_is_one_request() -> None:
    with StopRequest() as stop:
        stop.request(signal.SIGHUP)
        stop.request(signal.SIGHUP)
        assert stop.count == 1


def test_nohup_keeps_its_meaning() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.wait(0.05)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_wait_ends_with_a_request_of_another_thread() -> None:
    with StopRequest() as stop:
        threading.Timer(0.05, stop.request).start()
        assert stop.wait(30)
