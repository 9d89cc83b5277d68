"""One word for one thing: the RPC `SaveSession` is the method `save_session` of its port."""

from __future__ import annotations

import re


def method_name(rpc: str) -> str:
    """The port's name for an RPC."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", rpc).lower()
