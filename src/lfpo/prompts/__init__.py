"""Where prompts come from: tasks, JSONL files, data sets; and how they become token ids."""
