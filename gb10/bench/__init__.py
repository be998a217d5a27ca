"""The bench: what a box really does, as numbers with their spread. See docs/bench.md."""
