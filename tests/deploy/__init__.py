"""What deploy/ holds: checked with the programs it is for, and followed as README.md says."""
