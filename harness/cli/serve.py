"""`kvproof serve`: the reference engine behind an OpenAI-compatible HTTP interface."""

from __future__ import annotations

import logging
import signal
from socket import socket
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.serve_models import (
    DEFAULT_MEMORY,
    SYMBOLIC,
    Built,
    hugging_face,
    pick,
    symbolic,
)
from kvproof.harness.errors import Exit, UsageError
from kvproof.reference.server.options import ServerConfig

if TYPE_CHECKING:
    from kvproof.reference.server.service import Service

HINT = "see kvproof serve --help"


def serve(
    *,
    model: str,
    served_model_name: str = "",
    device: str = "cpu",
    dtype: str = "auto",
    mode: Literal["exact", "batched"] = "exact",
    attention: Literal["gather", "paged"] = "gather",
    max_model_len: int = 0,
    memory: str = DEFAULT_MEMORY,
    num_blocks: int = 0,
    block_size: int = 64,
    kernel_block_size: int = 0,
    enable_prefix_caching: bool = True,
    hash_algorithm: str = "sha256",
    hit_rate_window: int = 1000,
    cache_partial_blocks: bool = False,
    state_pool: Literal["shared", "separate"] = "shared",
    prefix_cache_state_budget: int = 0,
    prefix_cache_decode_state_interval: int = 0,
    return_routed_experts: bool = False,
    require_cached_experts: bool = False,
    max_batch_tokens: int = 8192,
    max_requests: int = 256,
    steps_in_flight: int = 1,
    num_drafts: int = 0,
    poison_freed: bool = False,
    host_tier: str = "0",
    disk_tier: tuple[str, str] | None = None,
    weights: str = "",
    host: str = ServerConfig.host,
    port: int = ServerConfig.port,
    api_key: Annotated[str, Parameter(env_var="KVPROOF_API_KEY", show_env_var=True)] = "",
    max_waiting: int = ServerConfig.max_waiting,
    max_tokens: int = ServerConfig.max_tokens,
    max_prompt_tokens: int = ServerConfig.max_prompt_tokens,
    max_body_bytes: int = ServerConfig.max_body_bytes,
    max_prompts: int = ServerConfig.max_prompts,
    max_images: int = ServerConfig.max_images,
    max_image_bytes: int = ServerConfig.max_image_bytes,
    grace: float = ServerConfig.grace,
) -> None:
    """Serve a model over HTTP, as OpenAI's clients speak it, until Ctrl-C or SIGTERM.

    Parameters
    ----------
    model
        A Hugging Face folder, or symbolic: a model without mathematics that needs no torch.
    served_model_name
        What requests call the model; the name of its folder by default.
    device
        cpu or cuda.
    dtype
        auto (that of the checkpoint), float32, float64, bfloat16.
    mode
        exact: one request per forward, so that answers do not depend on what else runs.
    attention
        gather: the model's own. paged: by the kernel that reads pages, where a step computes one
        token of a request; in 16 bits.
    max_model_len
        Tokens of the longest prompt with its answer; what the model states by default.
    memory
        For the cache of a Hugging Face model, for example 2GiB.
    num_blocks
        Blocks of the cache, the null block included, instead of memory.
    block_size
        Tokens.
    kernel_block_size
        Tokens that a kernel sees as one page; block_size by default.
    enable_prefix_caching
        Reuse what earlier requests have computed.
    hash_algorithm
        For keys that leave the process.
    hit_rate_window
        Requests in the rolling hit rate.
    cache_partial_blocks
        Let hits end inside a block.
    state_pool
        Recurrent states in ordinary blocks, or in rows of their own.
    prefix_cache_state_budget
        Rows of a separate state pool for checkpoints.
    prefix_cache_decode_state_interval
        Tokens between checkpoints while decoding; 0: none.
    return_routed_experts
        Record the experts of each token, and return them to whoever asks.
    require_cached_experts
        Let hits end before the first block without expert rows.
    max_batch_tokens
        Tokens that a step computes at most.
    max_requests
        Requests that run at once.
    steps_in_flight
        Steps that may be launched and not ended.
    num_drafts
        Tokens guessed ahead for each request.
    poison_freed
        Destroy the content of free blocks after each step, to find who still reads them.
    host_tier
        Host memory for what is evicted, for example 4GiB.
    disk_tier
        A folder and its size, for what host memory evicts: --disk-tier /var/cache/kv 100GiB.
    weights
        Names the weights, for objects in the disk tier, which outlive the process.
    host
        Address to listen on; any other than this default is reachable from other machines.
    port
        0: any free one.
    api_key
        What clients must send as bearer token.
    max_waiting
        Requests beyond max_requests that may wait; more are answered with 429.
    max_tokens
        Most tokens of an answer.
    max_prompt_tokens
        Longest prompt; as long as the model takes by default.
    max_body_bytes
        Of a request.
    max_prompts
        Of one request.
    max_images
        Of one request.
    max_image_bytes
        Of each image.
    grace
        Seconds that requests under way get to end.

    """
    given: dict[str, Any] = dict(locals())
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    try:
        config = pick(ServerConfig, given)
        built = symbolic(given) if model == SYMBOLIC else hugging_face(given)
        bound = _server().listen(config)
    except ValueError as error:
        raise UsageError(str(error), getattr(error, "hint", "") or HINT) from error
    _run(built, config, bound, served_model_name or built.language.name)


def _run(built: Built, config: ServerConfig, bound: socket, name: str) -> None:
    running, console = _server(), standard_output()

    def ready() -> None:
        cache = built.engine.config.cache
        console.print(f"{name} is served on {running.url_of(bound)}/v1", highlight=False)
        told = f"{cache.num_blocks - 1} blocks of {cache.block_size} tokens"
        console.print(f"  {told}; Ctrl-C or SIGTERM ends it", highlight=False)
        if not running.is_loopback(bound):
            key = "with the API key" if config.api_key else "by anybody: there is no --api-key"
            console.print(f"  reachable from other machines, {key}", style="bold yellow")

    service = _service(built, config)
    ended = running.run(service, bound, model=name, ready=ready)
    if service.loop.dead:
        raise SystemExit(Exit.HARNESS)
    if ended == signal.SIGINT:
        raise KeyboardInterrupt


def _service(built: Built, config: ServerConfig) -> Service:
    from kvproof.reference.server.service import Service

    return Service(built.engine, built.language, config)


def _server() -> Any:
    try:
        from kvproof.reference.server import running
    except ImportError as error:
        raise UsageError(
            f"kvproof serve needs a package that is not installed: {error.name or error}",
            "pip install 'kvproof[serve]'",
        ) from error
    return running
