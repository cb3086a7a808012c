"""Settings of this process. They hold where they're set: for ranks, set them in an endpoint or a bootstrap
function.
"""

prefix_python_logs_with_actor = True
"""Whether what an actor logs begins with its name."""
