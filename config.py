"""Read by the pyinfra command before anything else: how it must not end."""

from gb10 import ending, limits

limits.refuse_no_host()  # a deploy that reaches no box is no green one
ending.in_words()
