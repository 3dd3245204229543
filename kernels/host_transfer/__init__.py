"""The block transfer to and from pinned memory: `block_transfer.host`, swept against the link."""

from kvproof.kernels.block_transfer.host import Staging, transfer_from_host, transfer_to_host

__all__ = ["Staging", "transfer_from_host", "transfer_to_host"]
