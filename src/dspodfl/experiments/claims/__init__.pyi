from .base import ClaimCheck as ClaimCheck
from .base import Status as Status
from .base import check_claims as check_claims
from .base import check_kinds as check_kinds
from .base import claim_kind as claim_kind
from .base import kinds as kinds
from .base import overall as overall
from .printed import with_printed as with_printed

__all__ = [
    "ClaimCheck",
    "Status",
    "check_claims",
    "check_kinds",
    "claim_kind",
    "kinds",
    "overall",
    "with_printed",
]
