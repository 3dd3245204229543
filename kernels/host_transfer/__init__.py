"""The block transfer to and from pinned memory, swept against the link (G4).

In: pages on the device, objects in pinned memory. Out: bytes moved.
Imports `block_transfer` and the kernels' common modules.
"""
