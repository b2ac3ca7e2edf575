"""Is a set of records a fair comparison? One rule after another, each with a code of its own."""
