"""What a process that trains leaves for the next one, should it die: a wall around its faults."""
