"""Files, SQLite databases, digests and JSON: one way to put something on disk, for every folder.

files        a file that appears whole or not at all; secrets
database     SQLite connections: pragmas, transactions, checkpoints, forks
digests      SHA-256 of bytes, files and settings
json_files   JSON that is written whole and checked when it is read
"""
