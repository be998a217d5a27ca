"""The lab hosts that exist now, for `pyinfra tests/lab/inventory.py deploy.py` and `gb10 --inventory`."""

from tests.lab import record

lab = [(name, {"ssh_hostname": address}) for name, address in record.host_addresses().items()]
