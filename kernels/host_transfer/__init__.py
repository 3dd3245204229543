"""The block transfer to and from pinned memory, swept against the link (G4).

In: pages on the device, objects in pinned memory. Out: bytes moved.
Imports `block_transfer` and the kernels' common modules.
"""

from kvproof.kernels.block_transfer.host import Staging, transfer_from_host, transfer_to_host

__all__ = ["Staging", "transfer_from_host", "transfer_to_host"]
