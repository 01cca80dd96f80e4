"""Checking rules by random instantiation: what the tests do to the shipped ones and registration to a user's own."""
