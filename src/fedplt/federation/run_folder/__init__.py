"""The folder of a run: checkpoint, records, results, and who may write to it."""
