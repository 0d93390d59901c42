"""The page for people: what it shows, to whom, and that nothing a stranger writes does harm there."""
