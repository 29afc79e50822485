"""Who can reach the server: this machine alone, holders of a certificate, or the network. Knows no firewall."""

from __future__ import annotations

import re

from specserve.profile.schema import Profile

_LOOPBACK = re.compile(r"127(\.\d+){3}|localhost|\[?::1\]?", re.I)
_CLIENT_CERTIFICATE = 2  # ssl.CERT_REQUIRED


def is_open(profile: Profile) -> bool:
    """Whether the network reaches the server without a certificate of its own: no loopback, no Unix socket."""
    frontend = profile.frontend
    # without a certificate of its own it speaks plain HTTP, and asks nobody for one (uvicorn, config.py `is_ssl`)
    encrypted = bool(frontend.get("ssl_certfile") or frontend.get("ssl_keyfile"))
    certified = encrypted and bool(frontend.get("ssl_ca_certs"))
    certified = certified and frontend.get("ssl_cert_reqs") == _CLIENT_CERTIFICATE
    return not (_LOOPBACK.fullmatch(profile.server.host) or frontend.get("uds") or certified)
