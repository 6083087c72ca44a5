"""Keys and tokens that the tests of secured servers share."""

from typing import Any

from mainstem.admission import AuthSettings
from mainstem.admission.keys import secret_key, sign
from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.runtime.clock import SystemClock

KEY = "a-key-for-the-tests-of-32-bytes-and-more"
AUTH = AuthSettings(keys={"test": KEY})
SECURED = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False), auth=AUTH)


# Longer than the whole suite takes: some are made when a module is loaded, long before its tests run.
LIFETIME_S = 4 * 3600


def token(role: str = "admin", namespace: Any = "*", lifetime_s: int = LIFETIME_S, **more: Any) -> str:
    """A token that a server with `AUTH` takes."""
    claims = {
        "sub": f"{role}-of-{namespace}",
        "role": role,
        "namespace": namespace,
        "exp": SystemClock().now_ms() // 1000 + lifetime_s,
        **more,
    }
    return sign(claims, secret_key("test", KEY))


def bearer(text: str) -> dict[str, str]:
    """The header."""
    return {"Authorization": f"Bearer {text}"}
