"""Changes to torch that hold while a budget is open, and are undone when the last one ends."""
