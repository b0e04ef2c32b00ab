"""Create and check MUNGE credentials through libmunge.

This module uses ctypes, because the only Python wrapper on PyPI is an unmaintained alpha release.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from dataclasses import dataclass
from typing import Any

from slurm_gpu.errors import MungedUnavailableError, MungeError

_OPT_SOCKET = 8  # MUNGE_OPT_SOCKET in munge.h
_UNAVAILABLE = (6, 7)  # EMUNGE_SOCKET, EMUNGE_TIMEOUT


@dataclass(frozen=True, slots=True)
class Credential:
    """A decoded credential: the user and group of its creator, and the payload."""

    uid: int
    gid: int
    payload: bytes


def request_digest(method: str, target: str, body: bytes) -> bytes:
    """Return the payload that binds a credential to a request: the SHA-256 of METHOD, PATH?QUERY and body."""
    return _hex_sha256(b"\n".join((method.encode(), target.encode(), body)))


def _hex_sha256(data: bytes) -> bytes:
    text: str = _sha256()(data).hexdigest()
    return text.encode()


@functools.cache
def _sha256() -> Any:
    # hashlib loads OpenSSL, which takes 4 MB. Try Python's small internal modules first, as `random` does.
    for name in ("_sha2", "_sha256"):
        try:
            return importlib.import_module(name).sha256
        except (ImportError, AttributeError):
            continue
    return importlib.import_module("hashlib").sha256


def encode(payload: bytes, socket: str | None = None) -> str:
    """Return a new credential of the calling user for `payload`; `socket` is None for the default socket."""
    lib = _library()
    credential = ctypes.c_char_p()
    with _Context(socket) as context:
        code = lib.munge_encode(ctypes.byref(credential), context, payload, len(payload))
        _check(code, context)
    try:
        return (credential.value or b"").decode("ascii")
    finally:
        _free(credential)


def decode(credential: str, socket: str | None = None) -> Credential:
    """Decode a credential; check its signature and age, and that this host has not decoded it before."""
    lib = _library()
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    with _Context(socket) as context:
        code = lib.munge_decode(
            credential.encode("ascii", "replace"),
            context,
            ctypes.byref(payload),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        try:
            _check(code, context)
            data = ctypes.string_at(payload, length.value) if payload else b""
        finally:
            _free(payload)  # libmunge returns the payload even with an error
    return Credential(uid.value, gid.value, data)


class _Context:
    """A munge_ctx_t for one call; it is NULL for the default socket."""

    def __init__(self, socket: str | None) -> None:
        self._socket = socket
        self._context: ctypes.c_void_p | None = None

    def __enter__(self) -> ctypes.c_void_p | None:
        if self._socket is not None:
            lib = _nonblocking_library()
            self._context = ctypes.c_void_p(lib.munge_ctx_create())
            lib.munge_ctx_set(self._context, _OPT_SOCKET, self._socket.encode())
        return self._context

    def __exit__(self, *exc: object) -> None:
        if self._context is not None:
            _nonblocking_library().munge_ctx_destroy(self._context)


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        # Load the library by name, because ctypes.util would run ldconfig and a compiler to find it.
        lib = ctypes.CDLL("libmunge.so.2")
    except OSError as error:
        raise MungeError(f"libmunge is not installed ({error}); install the package munge") from None
    lib.munge_encode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    lib.munge_decode.argtypes = [ctypes.c_char_p] + [ctypes.c_void_p] * 5
    return lib


@functools.cache
def _nonblocking_library() -> ctypes.PyDLL:
    """Return libmunge for calls to its non-blocking functions, which do not release the GIL.

    Reacquiring the GIL takes time if other threads are busy, so it is released only once per credential.
    """
    lib = ctypes.PyDLL("libmunge.so.2")
    lib.munge_ctx_create.restype = ctypes.c_void_p
    lib.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    lib.munge_ctx_strerror.argtypes = [ctypes.c_void_p]
    lib.munge_ctx_strerror.restype = ctypes.c_char_p
    lib.munge_strerror.restype = ctypes.c_char_p
    # munge_ctx_set is variadic, so only its fixed arguments are declared.
    lib.munge_ctx_set.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.free.argtypes = [ctypes.c_void_p]
    lib.free.restype = None
    return lib


def _free(pointer: Any) -> None:
    _nonblocking_library().free(ctypes.cast(pointer, ctypes.c_void_p))


def _check(code: int, context: ctypes.c_void_p | None) -> None:
    if code == 0:
        return
    lib = _nonblocking_library()
    detail = lib.munge_ctx_strerror(context) if context is not None else None
    text = (detail or lib.munge_strerror(code) or b"unknown error").decode("utf-8", "replace")
    if code in _UNAVAILABLE:
        raise MungedUnavailableError(f"MUNGE: {text}; is munged running?")
    raise MungeError(f"MUNGE: {text}")
