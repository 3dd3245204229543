"""Part `states`: recurrent states and their checkpoints, against a model made of sets."""
