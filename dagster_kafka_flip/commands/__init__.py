"""The commands that look at streams. Their own modules import nothing heavy until a command runs."""
