"""Prompts: from tasks, JSONL files or data sets, and their encoding as token ids."""
