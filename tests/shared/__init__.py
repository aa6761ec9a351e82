"""What the tests of the session have in common."""
