"""The planning methods, one file per method or family."""
