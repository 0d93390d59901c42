"""Least privilege: what roles may do, what secrets and records may reach, and what a stranger can make grow."""
