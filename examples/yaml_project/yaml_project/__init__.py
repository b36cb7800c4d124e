"""A project whose definitions are YAML alone: defs/ has them."""
