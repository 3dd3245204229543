"""Part `media`: identity of media and embeddings, and how hits and steps respect their spans."""
