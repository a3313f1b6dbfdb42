"""What every other folder builds on: errors, settings, files, progress, parts and their registry."""
