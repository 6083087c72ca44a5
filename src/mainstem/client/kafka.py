"""A small client of the Kafka door for our own commands: one connection, one request at a time, no data."""

import socket
import ssl
import struct
from typing import Any, Self

from kio.schema.errors import ErrorCode

from mainstem.model.errors import Denied, Invalid, NotFound, OutcomeUnknown
from mainstem.wire.kafka.messages import Message, decode_response, encode_request

METADATA, LIST_OFFSETS, CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS = (3, 9), (2, 7), (19, 7), (20, 6), (32, 4)
LIST_GROUPS, DESCRIBE_GROUPS, DELETE_GROUPS, DESCRIBE_NEW_GROUPS = (16, 5), (15, 5), (42, 2), (69, 1)
OFFSET_COMMIT, OFFSET_FETCH = (8, 8), (9, 8)
_HANDSHAKE, _AUTHENTICATE = (17, 1), (36, 2)
EARLIEST, LATEST = -2, -1
TIMEOUT_S = 20.0
_ANSWER_BYTES_MAX = 64 * 1024 * 1024

Api = tuple[int, int]


class KafkaClient:
    """Asks one broker. Blocks: for command lines. `token` is a bearer token, or `user:password`."""

    def __init__(self, bootstrap: str, *, token: str | None = None, tls: bool = False) -> None:
        host, _, port = bootstrap.rpartition(":")
        if not port.isdecimal():
            raise Invalid(f"the address of a Kafka door. expected=host:port got={bootstrap}")
        try:
            self._socket = socket.create_connection((host or "127.0.0.1", int(port)), TIMEOUT_S)
        except OSError as error:
            raise Invalid(f"no answer from {bootstrap}: {error}. Is the server started with --kafka-port?") from error
        if tls:
            self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=host)
        self._number = 0
        if token:
            self._log_in(token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def ask(self, api: Api, request: Message) -> Any:
        """One request and its answer."""
        self._number += 1
        try:
            self._socket.sendall(encode_request(*api, self._number, request))
            (size,) = struct.unpack(">i", self._read(4))
            if not 4 <= size <= _ANSWER_BYTES_MAX:
                raise Invalid(f"answer. expected=at most {_ANSWER_BYTES_MAX} bytes got={size}")
            return decode_response(*api, self._read(size))
        except OSError as error:
            raise OutcomeUnknown(f"the connection failed: {error}") from error

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise ConnectionError("the server closed it; does it ask for a token?")
            found += part
        return bytes(found)

    def _log_in(self, token: str) -> None:
        user, colon, password = token.partition(":")
        said = f"\0{user}\0{password}" if colon else f"\0token\0{token}"
        offer = self.ask(_HANDSHAKE, {"mechanism": "PLAIN"})
        if offer.error_code is ErrorCode.unsupported_sasl_mechanism and not offer.mechanisms:
            # The door asks nobody for a login, so it is not told one either.
            return
        check(offer.error_code, "login")
        answer = self.ask(_AUTHENTICATE, {"auth_bytes": said.encode()})
        check(answer.error_code, answer.error_message or "login")


def check(code: ErrorCode, what: str) -> None:
    """Raise what an error code means."""
    if code is ErrorCode.none:
        return
    message = f"{what}: {code.name.upper()}"
    if code.name.endswith("authorization_failed") or code is ErrorCode.sasl_authentication_failed:
        raise Denied(message)
    if code in (ErrorCode.unknown_topic_or_partition, ErrorCode.group_id_not_found):
        raise NotFound(message)
    raise Invalid(message)
