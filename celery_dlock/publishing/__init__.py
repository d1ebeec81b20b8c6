"""What happens where a task is published: in a web process, in beat, in another task's body.

It imports no worker, and nothing of what runs a task.
"""
