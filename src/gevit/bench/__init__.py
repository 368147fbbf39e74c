"""Time and peak memory of the attention backends, side by side; every case in a process of its own."""
