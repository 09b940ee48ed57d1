"""The language model: a Llama-style decoder, and its loss."""
