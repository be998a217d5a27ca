"""The lab: real Debian hosts with systemd, sshd and Docker, and stand-ins for what a GB10 has."""
