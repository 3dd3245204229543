"""Options of `kvproof serve`; those of the server have the defaults of `ServerConfig`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

DEFAULT_MEMORY = "2GiB"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of the verb; each attribute docstring is the help text."""

    model: str
    """A Hugging Face folder, or symbolic: a model without mathematics that needs no torch."""
    served_model_name: str = ""
    """Name of the model in requests; its folder's name by default."""
    device: str = "cpu"
    """cpu or cuda."""
    dtype: str = "auto"
    """auto (that of the checkpoint), float32, float64, bfloat16."""
    mode: Literal["exact", "batched", "invariant"] = "exact"
    """exact: one request per forward, so that answers do not depend on other requests. invariant:
    one token of one, so that they depend on their tokens alone; slow."""
    attention: Literal["gather", "paged"] = "gather"
    """gather: the model's own. paged: by the kernel that reads pages, where a step computes one
    token of a request; in 16 bits."""
    max_model_len: int = 0
    """Tokens of the longest prompt with its answer; the model's own limit by default."""
    memory: str = DEFAULT_MEMORY
    """For the cache of a Hugging Face model, for example 2GiB."""
    num_blocks: int = 0
    """Blocks of the cache, the null block included, instead of memory."""
    block_size: int = 64
    """Tokens."""
    kernel_block_size: int = 0
    """Tokens that a kernel sees as one page; block_size by default."""
    enable_prefix_caching: bool = True
    """Reuse blocks that earlier requests computed."""
    hash_algorithm: str = "sha256"
    """Hash algorithm for keys that leave the process."""
    hit_rate_window: int = 1000
    """Requests in the rolling hit rate."""
    cache_partial_blocks: bool = False
    """Let hits end inside a block."""
    state_pool: Literal["shared", "separate"] = "shared"
    """Recurrent states in ordinary blocks, or in rows of their own."""
    prefix_cache_state_budget: int = 0
    """Rows of a separate state pool for checkpoints."""
    prefix_cache_decode_state_interval: int = 0
    """Tokens between checkpoints while decoding; 0: none."""
    return_routed_experts: bool = False
    """Record the experts of each token, and return them on request."""
    require_cached_experts: bool = False
    """Let hits end before the first block without expert rows."""
    max_batch_tokens: int = 8192
    """Tokens that a step computes at most."""
    max_requests: int = 256
    """Most requests that run at once."""
    steps_in_flight: int = 1
    """Most steps launched and not complete."""
    num_drafts: int = 0
    """Draft tokens per request and step."""
    poison_freed: bool = False
    """Destroy the content of free blocks after each step, to find late reads."""
    host_tier: str = "0"
    """Host memory for evicted objects, for example 4GiB."""
    disk_tier: tuple[str, str] | None = None
    """A folder and its size, for evictions of the host: --disk-tier /var/cache/kv 100GiB."""
    weights: str = ""
    """Names the weights: the disk tier and a remote store find objects by this name."""
    remote: str = ""
    """A store that servers share: redis://HOST:6379/0 (Redis, Valkey), or ipc:///PATH and
    tcp://127.0.0.1:PORT (kvproof cache-server). Needs --host-tier and --weights."""
    remote_secret_file: Path | None = None
    """File with the password of Redis or the token of the cache server; never in the URL."""
    host: str = "127.0.0.1"
    """Address to listen on; any other than this default is reachable from other machines."""
    port: int = 8000
    """0: any free one."""
    api_key: Annotated[str, Parameter(env_var="KVPROOF_API_KEY", show_env_var=True)] = ""
    """Bearer token that clients must send; from the variable or a file, never in the command."""
    api_key_file: Path | None = None
    """File with that token in its first line."""
    admin_api_key: Annotated[str, Parameter(env_var="KVPROOF_ADMIN_API_KEY", show_env_var=True)] = (
        ""
    )
    """Bearer token of /admin, which moves requests between servers; no /admin without it. From the
    variable or a file, never in the command."""
    admin_api_key_file: Path | None = None
    """File with that token in its first line."""
    max_connections: int = 1024
    """Connections; more are answered with 503. Fewer if the process may open fewer files."""
    request_timeout: float = 60.0
    """Seconds for a client to send a whole request, and to go on reading its answer."""
    max_waiting: int = 256
    """Requests beyond max_requests that may wait; more are answered with 429."""
    max_tokens: int = 4096
    """Most tokens of an answer."""
    max_prompt_tokens: int = 0
    """Most tokens of a prompt; the model's own limit by default."""
    max_body_bytes: int = 32 << 20
    """Most bytes of a request."""
    max_prompts: int = 64
    """Most prompts of one request."""
    max_images: int = 16
    """Most images of one request."""
    max_image_bytes: int = 8 << 20
    """Largest size of one image file."""
    grace: float = 30.0
    """Seconds for running requests to end at shutdown."""

    def pick(self, kind: Any, **more: Any) -> Any:
        """Build a configuration from the options with the names of its fields."""
        names = {field.name for field in fields(kind)}
        return kind(**{name: value for name, value in vars(self).items() if name in names} | more)
