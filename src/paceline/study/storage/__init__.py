"""Where a study is stored: Optuna's storages, a journal file, writing behind."""
