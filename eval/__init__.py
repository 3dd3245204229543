"""LongBench v2 for caches: data, protocol and paired comparison, against any OpenAI server."""
