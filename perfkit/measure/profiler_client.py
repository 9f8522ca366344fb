"""The client of XLA's profiler server, which JAX and torch_xla run in the process that trains.

It speaks one call of one service, so the few protobuf fields are written by hand.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from typing import Any

from perfkit.errors import NotSupportedHere, UsageError
from perfkit.measure.profilers import busy
from perfkit.optional import require

__all__ = ["ask", "loopback"]

CONNECT_S, PROBE_S, GRACE_S = 2, 5, 19
PROFILE_MS, OPTIONS, SESSION, HOST_NAME, EMIT_XSPACE = 1, 4, 6, 7, 9
"""Fields of XLA's ProfileRequest."""
OPTION_VALUES = {5: 1, 2: 2, 3: 1, 4: 0, 7: 1}
"""Fields of its ProfileOptions: version 1, host level 2, device level 1, no Python, programs."""
OPTION_MS = 9
XSPACE = 8
"""The field of its ProfileResponse that holds the trace."""


def loopback(host: str) -> str:
    """An address of this machine, as text. Raises UsageError for any other."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise UsageError(
            f"--live looks only into this machine, not {host!r}: forward the port with "
            "`ssh -L PORT:localhost:PORT HOST`, and leave the host out"
        )
    return str(address)


def ask(seconds: float, address: str, port: int) -> bytes:
    """The trace that the profiler server records and sends; it writes no file."""
    grpc = require("grpc", "--live with --port")
    end_s = time.monotonic() + seconds + GRACE_S
    try:
        socket.create_connection((address, port), CONNECT_S).close()
    except OSError as error:
        raise NotSupportedHere(
            f"nobody listens on port {port} ({error.strerror or error}): call "
            f"jax.profiler.start_server({port}) in the process that trains"
        ) from error
    target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    options = {
        "grpc.enable_http_proxy": 0,
        "grpc.max_receive_message_length": -1,
        # A pool of connections would remember how an earlier one failed.
        "grpc.use_local_subchannel_pool": 1,
    }
    with grpc.insecure_channel(target, options=tuple(options.items())) as channel:
        _refuse_old_servers(grpc, channel, port)
        call = channel.unary_unary("/tensorflow.ProfilerService/Profile")
        try:
            return _xspace(call(_request(seconds), timeout=end_s - time.monotonic()))
        except grpc.RpcError as error:
            raise NotSupportedHere(_reason(grpc, error, seconds, port)) from error


def _refuse_old_servers(grpc: Any, channel: Any, port: int) -> None:
    """Raise NotSupportedHere unless the server knows a call that came with JAX 0.9.

    Older ones on Python 3.11 crash the process that they profile, or block it for good.
    """
    probe = channel.unary_unary("/tensorflow.ProfilerService/GetSnapshot")
    try:
        probe(b"", timeout=PROBE_S)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise NotSupportedHere(
                f"port {port} is not served by JAX 0.9 or newer; profiler servers of older ones "
                "can crash the training they look into: update jax there"
            ) from error
        raise NotSupportedHere(
            f"what listens on port {port} is no profiler server: give the port of "
            "jax.profiler.start_server"
        ) from error
    raise NotSupportedHere(busy("the process", f"on port {port}"))


def _reason(grpc: Any, error: Any, seconds: float, port: int) -> str:
    code, details = error.code(), " ".join((error.details() or "").split())
    if "session active" in details:
        return busy("the process", f"on port {port}")
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"the process on port {port} ended while it was recorded: is it running still?"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return (
            f"the process on port {port} sent no trace within {seconds + GRACE_S:g} s: "
            "it hangs, or the trace is too large; record fewer seconds"
        )
    return f"the profiler on port {port} failed ({details or code.name}): try again"


def _request(seconds: float) -> bytes:
    duration_ms = max(1, round(1000 * seconds))
    options = b"".join(
        _number(field, value) for field, value in {**OPTION_VALUES, OPTION_MS: duration_ms}.items()
    )
    return b"".join(
        (
            _number(PROFILE_MS, duration_ms),
            _text(OPTIONS, options),
            _text(SESSION, b"perfkit"),
            _text(HOST_NAME, b"localhost"),
            _number(EMIT_XSPACE, 1),
        )
    )


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """A number in protobuf's form: seven bits a byte, the lowest first."""
    head = bytearray()
    while value > 127:
        head.append(value & 127 | 128)
        value >>= 7
    return bytes((*head, value))


def _xspace(answer: bytes) -> bytes:
    """The trace in a ProfileResponse; empty if there is none."""
    at = 0
    while at < len(answer):
        tag, at = _read_varint(answer, at)
        size, at = _read_varint(answer, at)
        if tag == XSPACE << 3 | 2:
            return answer[at : at + size]
        at += size if tag & 7 == 2 else 0
    return b""


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
