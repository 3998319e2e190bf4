"""The start and the end of every process of ours: its log, its title, its way out."""
