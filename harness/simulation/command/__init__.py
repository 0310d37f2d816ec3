"""What ``moiety simulate`` and ``moiety merge`` do with studies and cases."""
