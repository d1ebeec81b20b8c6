"""The rules and the values that they speak of: a key's state, and what each operation makes of it.

Pure: no thread, no process, no store, no framework. What the model checker explores is this.
"""
