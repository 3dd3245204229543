"""A small hybrid model that answers generated samples, and the script that trains it."""
