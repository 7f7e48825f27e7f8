"""What vendors' clients give goes in as it is, and what is sent next is what their requests may hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import Memory
from vendors import VENDORS

law = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore:the usage of what was added:palimpsest.PalimpsestWarning")
@pytest.mark.parametrize("vendor", VENDORS)
@law
@given(data=st.data())
def test_what_is_sent_after_an_answer_is_what_a_request_may_hold(vendor: str, data: Any) -> None:
    """A response of any vendor goes in, and the next request to that vendor is one that its own types take."""
    one = VENDORS[vendor]()
    answer = data.draw(one.answers)
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=one.format)
        session.add_user_message("Hello")

        session.add(answer)
        session.add_user_message("And then?")

        assert one.faults(session.context().messages) == []
