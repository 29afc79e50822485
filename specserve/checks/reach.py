"""Who can reach the server: this machine alone, holders of a certificate, or the network. Knows no firewall."""

from __future__ import annotations

import re

from specserve.profile.schema import Profile

_LOOPBACK = re.compile(r"127(\.\d+){3}|localhost|\[?::1\]?", re.I)
_CLIENT_CERTIFICATE = 2  # ssl.CERT_REQUIRED


def is_open(profile: Profile) -> bool:
    """Whether the network reaches the server without a certificate of its own: no loopback, no Unix socket."""
    frontend = profile.frontend
    certified = frontend.get("ssl_cert_reqs") == _CLIENT_CERTIFICATE and bool(frontend.get("ssl_ca_certs"))
    return not (_LOOPBACK.fullmatch(profile.server.host) or frontend.get("uds") or certified)
