"""Why a host, or every host, is left out; and what would make more of them qualify."""
