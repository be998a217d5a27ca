"""Provisioning of a GB10 box: what the deploy file, the command line and the tests call."""
