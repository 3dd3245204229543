"""Part `system`: the whole engine with a symbolic model, against a computation without memory."""
