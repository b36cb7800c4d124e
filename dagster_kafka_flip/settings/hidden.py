"""Hides values that may be secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

# Kafka ignores text before the key. Spark's default regex matches the word in the value: this also covers sessions and
# servers that this package did not start.
_MARK = "This is a secret.\n"

HIDDEN = "**********"
"""Replaces a value that may be a secret, as in pydantic."""

# Spark's default words, and names of the stores' and Kafka's credential settings without any of these words.
CREDENTIALS = (
    r"(?i:secret|password|token|access[.]?key|(?:account|private|encryption)[.]key\b|ssl[.]keystore[.]key|jaas"
    r"|credential|user[.]info|azure[.]sas)"
)

# Their values are words that a text may have anyway, such as true.
_PLAIN_PARAMETERS = frozenset({"session_id", "use_ssl", "user_agent", "user_id"})

_LOGIN = re.compile(r"//[^/@]*@")


def is_credential(name: str) -> bool:
    return re.search(CREDENTIALS, name) is not None


def hidden_values(values: Mapping[str, object]) -> dict[str, str]:
    """Returns the names of settings, without their values, for printing."""
    return dict.fromkeys(values, HIDDEN)


def hidden_logins(addresses: str) -> str:
    """Returns addresses without the user names and passwords before an @."""
    return _LOGIN.sub(f"//{HIDDEN}@", addresses)


def hidden_parameters(remote: str) -> str:
    """Returns a Spark Connect address without its parameter values, which may include a token or a user name."""
    address, *parameters = remote.split(";")
    address = hidden_logins(address)
    return ";".join([address, *(f"{each.partition('=')[0]}={HIDDEN}" if "=" in each else each for each in parameters)])


def without_parameters(text: str, remote: str) -> str:
    """Removes from a text, such as an error message, what `hidden_parameters` hides of an address."""
    text = text.replace(remote, hidden_parameters(remote))
    if (login := _LOGIN.search(remote)) is not None:
        # pyspark's own errors show the address without its scheme.
        text = text.replace(login[0].removeprefix("//"), f"{HIDDEN}@")
    for parameter in remote.split(";")[1:]:
        name, _, value = parameter.partition("=")
        for form in {value, unquote(value)} - {""} if name not in _PLAIN_PARAMETERS else ():
            text = text.replace(form, HIDDEN)
    return text


def marked_as_secret(pem: str) -> str:
    """A private key that every Spark redacts, even without a setting."""
    return _MARK + pem
