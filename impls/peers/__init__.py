"""What a user would run instead of the models of this package: peers to hold their speed against."""
