"""The part `store`: objects that several clients share are whole, true and accounted for (G8)."""
