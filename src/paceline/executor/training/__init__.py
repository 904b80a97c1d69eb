"""How packs train: plans and slots, rounds and streams, memory, copies, and what is reported."""
