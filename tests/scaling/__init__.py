"""Whether our SQL can be distributed by did: every statement is parsed and held to rules (docs/scaling.md)."""
