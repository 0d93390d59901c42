"""Permissioned spaces: the real exchanges of a reference PDS, and a simulated host under faults."""
