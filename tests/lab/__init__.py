"""The lab: real Debian hosts with systemd, sshd and Docker on one plain machine, and what stands in for a GB10."""
