"""The paper's experiments on tables and generated data; `tools/run_*.py` are their commands."""
