"""Black-box checks of a running OpenAI-compatible server, by prompts that share what they share."""
