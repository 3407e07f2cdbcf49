"""The same end state by us and by what people use today, measured on one machine in one run."""
