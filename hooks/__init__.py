"""Ready-made hooks for a deployment."""
