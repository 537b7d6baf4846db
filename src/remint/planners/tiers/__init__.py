"""Plans with a tier: which values to keep, which to recompute, and which to copy to the tier and back."""
