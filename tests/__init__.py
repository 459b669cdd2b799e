"""The claims that the README makes, as tests."""
