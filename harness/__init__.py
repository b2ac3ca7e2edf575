"""Trains, measures and compares the implementations of `impls` on identical runs."""
