"""The programs that have ended: what their calls took, and where their time went; never content."""
