"""Several processes that search one study: who trains which trial, and who is alive."""
