"""Who this server is: its certificate, its roster and keys, its history, its sessions with sites."""
