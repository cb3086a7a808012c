"""Settings of this process. They hold in the process that sets them: for ranks, set them in an endpoint or a
bootstrap function.
"""

prefix_python_logs_with_actor = True
"""Whether what an actor logs begins with its name."""
