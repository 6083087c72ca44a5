"""Who asks: bearer tokens, and the endpoint that gives them out. Only where the catalog has clients."""

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import parse_qsl

from mainstem.catalog.access.tokens import TokenExpired, TokenRefused, Tokens
from mainstem.doors.catalog.answers import Answer, failure
from mainstem.wire import iceberg_rest as wire

TOKEN_PATH = "oauth/tokens"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


def refusal(tokens: Tokens, headers: Mapping[str, str]) -> Answer | None:
    """Why a request is not served; None if it is."""
    if not tokens.is_required:
        return None
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        answer = failure("Not authorized: no bearer token", "NotAuthorizedException", 401)
        return answer._replace(headers={"WWW-Authenticate": "Bearer"})
    try:
        tokens.check(token.strip())
    except TokenExpired:
        return failure("Credentials have timed out", "AuthenticationTimeoutException", 419)
    except TokenRefused as error:
        return failure(f"Not authorized: {error}", "NotAuthorizedException", 401)
    return None


def token_answer(tokens: Tokens, headers: Mapping[str, str], body: bytes) -> Answer:
    """The answer of the token endpoint, in OAuth2's own words."""
    if not tokens.is_required:
        return _oauth_error("unauthorized_client", "this catalog asks for no tokens", 400)
    form = dict(parse_qsl(body.decode("utf-8", "replace")))
    try:
        match form.get("grant_type"):
            case "client_credentials":
                token = tokens.issue(*_credentials(form, headers))
            case grant if grant == _EXCHANGE:
                token = tokens.exchange(form.get("subject_token", ""))
            case _:
                return _oauth_error("unsupported_grant_type", "expected client_credentials or token-exchange", 400)
    except TokenRefused as error:
        return _oauth_error(error.error, str(error), 401 if error.error == "invalid_client" else 400)
    told = {
        "access_token": token,
        "token_type": "bearer",
        "expires_in": tokens.lifetime_s,
        "issued_token_type": _ACCESS_TOKEN,
    }
    return Answer(200, wire.encode(told), {"Cache-Control": "no-store"})


def _credentials(form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[str, str]:
    kind, _, text = headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            client_id, _, secret = base64.b64decode(text, validate=True).decode().partition(":")
        except (binascii.Error, ValueError) as error:
            raise TokenRefused("invalid_client", "the Authorization header cannot be read") from error
        return client_id, secret
    return form.get("client_id", ""), form.get("client_secret", "")


def _oauth_error(error: str, message: str, status: int) -> Answer:
    return Answer(status, wire.encode({"error": error, "error_description": message}))
