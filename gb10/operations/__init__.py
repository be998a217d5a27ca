"""Operations that several stages use."""

from collections.abc import Generator

from pyinfra.api.command import PyinfraCommand

# What an operation is made of: the commands that it would run, none when all is as it should be.
Commands = Generator[PyinfraCommand, None, None]
