"""Rules checked on random instances: the shipped ones by the tests, a user's own as they are registered."""
