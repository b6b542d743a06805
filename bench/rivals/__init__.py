"""What runs in the environment of the rivals, .venv-rivals, which `setup` makes."""
