"""Options of the server itself: where it listens and how much a client may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.reference.core.validation import is_whole, require, whole

_MEBI = 1 << 20


@dataclass(frozen=True)
class ServerConfig:
    """Limits are per request unless noted otherwise. Raises ConfigError."""

    host: str = "127.0.0.1"
    """Address to listen on; the default is reachable from this machine only."""
    port: int = 8000
    """0: any free one."""
    api_key: str = ""
    """Bearer token that clients must send to `/v1`; empty: none."""
    admin_api_key: str = ""
    """Bearer token of `/admin`, and of the servers to which requests move; empty: no `/admin`."""
    max_connections: int = 1024
    """Connections; more are answered with 503. Fewer if the process may open fewer files."""
    request_timeout: float = 60.0
    """Seconds for a client to send a whole request, and to go on reading its answer."""
    max_waiting: int = 256
    """Requests beyond those that run at once (`max_requests`); more are answered with 429."""
    max_tokens: int = 4096
    """Most tokens that an answer may have."""
    max_prompt_tokens: int = 0
    """Longest prompt; 0: as far as the model's length goes."""
    max_body_bytes: int = 32 * _MEBI
    max_prompts: int = 64
    """Prompts in one request of `/v1/completions`."""
    max_images: int = 16
    max_image_bytes: int = 8 * _MEBI
    """Largest size of each image file."""
    grace: float = 30.0
    """Seconds that running requests get to end after the server begins to stop."""

    def __post_init__(self) -> None:
        require(_is_text(self.host) and bool(self.host), "host", self.host, _HOST, "127.0.0.1")
        ports = is_whole(self.port, least=0) and self.port < 1 << 16
        require(ports, "port", self.port, "a whole number from 0 to 65535", 8000)
        for name in ("api_key", "admin_api_key"):
            key = getattr(self, name)
            fits = _is_text(key) and " " not in key and key.isascii()
            require(fits, name, "...", "printable ASCII without spaces", "s3cret")
        whole("max_connections", self.max_connections, least=1, example=1024)
        patient = _is_span(self.request_timeout) and self.request_timeout > 0
        rule = "seconds, above 0 and up to 86400"
        require(patient, "request_timeout", self.request_timeout, rule, 60.0)
        whole("max_waiting", self.max_waiting, least=0, example=256)
        whole("max_tokens", self.max_tokens, least=1, example=4096)
        whole("max_prompt_tokens", self.max_prompt_tokens, least=0, example=8192)
        whole("max_body_bytes", self.max_body_bytes, least=1024, example=32 * _MEBI)
        whole("max_prompts", self.max_prompts, least=1, example=64)
        whole("max_images", self.max_images, least=0, example=16)
        whole("max_image_bytes", self.max_image_bytes, least=1, example=8 * _MEBI)
        require(_is_span(self.grace), "grace", self.grace, "seconds, from 0 to 86400", 30.0)


_HOST = "an address or a name of this machine"
_DAY = 86_400


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_span(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= _DAY
