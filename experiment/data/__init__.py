"""Corpora, shards, the order of samples, and the datamodule that reads them."""
