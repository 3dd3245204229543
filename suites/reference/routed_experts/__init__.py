"""Part `experts`: routed experts of every token, against a model that knows them all."""
