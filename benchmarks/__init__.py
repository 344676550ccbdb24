"""What is claimed about speed and quality, as commands: `python -m benchmarks.NAME [--json FILE]`.

Speed is a ratio within one run, printed beside the limit it is held against.
"""
