"""The claims that the README makes, as tests."""

import os

# A terminal's command is forked beside gRPC's threads, whose fork handlers now and then end the
# fork before it is the command.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
