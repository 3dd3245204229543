"""The classes of attacks: one module each, with `attack(session, random) -> Attempt`."""
