"""How many bugs the lab sees: small changes of the engine's files, each planted and played.

    python -m tests.mutation --sample 60
"""
