"""The notebook's environment goes to hosts.

packs       content in packs of 16 MiB (pure)
receiving   what an agent does with a pack: verify, write
agent       a process on each host, in a group of its own: it has the host's store
spreading   a pack from the notebook's machine to all agents, from agent to agent
sending     the whole: survey, what is missing, packs, prefixes, other zygotes
report      what was done, as data and as text
"""
