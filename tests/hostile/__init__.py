"""Hostile input, through the real pipeline and store."""
