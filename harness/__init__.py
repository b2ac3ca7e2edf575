"""Trains, measures and compares the implementations of `impls` on identical runs."""

__version__ = "0.1.0"
