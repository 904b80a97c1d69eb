"""Drop-in layers: code written for other tools runs unchanged, in packs."""
