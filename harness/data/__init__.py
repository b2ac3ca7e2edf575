"""Corpora, tokenizers, vocabularies and batches."""
