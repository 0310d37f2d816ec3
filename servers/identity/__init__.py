"""The server's identity: its certificate, its roster and keys, its history, its sessions with sites."""
