"""What a server does by itself as time passes: studies that are over are deleted, silent requesters' ones paused."""
