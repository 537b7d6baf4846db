"""What several tests share: models, random programs, reference implementations, checkers."""
