"""What the indexer costs, beside what its peers cost on the same machine in the same run: ``python -m benchmarks``."""
