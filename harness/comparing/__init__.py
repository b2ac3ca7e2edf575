"""Sides of runs held against each other: settings, figures, sentences, lengths, words and n-grams."""
