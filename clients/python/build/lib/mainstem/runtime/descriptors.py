"""How many sockets and files this process may have open."""

import logging
import resource

log = logging.getLogger(__name__)


def raise_descriptor_limit() -> int:
    """Take as many as the system allows this user; the limit that holds from here on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (resource.RLIM_INFINITY, hard):
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        # Some systems name a hard limit that they do not grant.
        log.warning("the limit of open files stays at %d: %s", soft, error)
        return soft
    return hard
