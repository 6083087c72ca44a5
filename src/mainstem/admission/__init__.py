"""Who, how much, and seen before: the one gate in front of the log."""

from mainstem.admission.auth import Authenticator, Unauthenticated
from mainstem.admission.dedup import Dedup, DedupSettings, Seen
from mainstem.admission.gate import Duplicate, Gate
from mainstem.admission.intake import Appended, Appender, Intake, Ticket
from mainstem.admission.keys import AuthSettings
from mainstem.admission.limits import Limits, OutOfSequence, TooLarge
from mainstem.admission.pressure import Pressure
from mainstem.admission.principal import ANYONE, Principal, Role
from mainstem.admission.rates import Meter, RateExceeded, Rates, RateSettings, RateView
from mainstem.admission.users import MadeUser, Users, UserSettings

__all__ = [
    "ANYONE",
    "Appended",
    "Appender",
    "AuthSettings",
    "Authenticator",
    "Dedup",
    "DedupSettings",
    "Duplicate",
    "Gate",
    "Intake",
    "Limits",
    "MadeUser",
    "Meter",
    "OutOfSequence",
    "Pressure",
    "Principal",
    "RateExceeded",
    "RateSettings",
    "RateView",
    "Rates",
    "Role",
    "Seen",
    "Ticket",
    "TooLarge",
    "Unauthenticated",
    "UserSettings",
    "Users",
]
