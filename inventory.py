"""The boxes. One line each: a name that SSH resolves (or that ~/.ssh/config knows), and what differs.

Everything that all boxes share is in group_data/all.py, what the hardware is in group_data/gb10.py.
"""

gb10 = [
    # ("spark.local", {"ssh_user": "me"}),
    ("gb10.local", {}),
]
