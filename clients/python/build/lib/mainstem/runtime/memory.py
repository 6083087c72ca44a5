"""How much memory a process holds."""

import os
import resource
import sys
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_bytes() -> int:
    """Of this process, now; where the system does not tell, the most it ever held."""
    try:
        resident_pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return int(resident_pages) * _PAGE_BYTES
