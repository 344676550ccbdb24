"""Ready-made questions for trying the workers out: `laya-workers submit --preset NAME` and the demo ask them.

They are ordinary question mappings as any backend would write them; nothing treats them specially.
"""

from __future__ import annotations

from typing import Any

TRIAGE: dict[str, dict[str, Any]] = {
    "team": {
        "type": "choice",
        "instructions": "Which team should answer this customer?",
        "criteria": {
            "billing": "a charge, invoice, payment method or tax on the bill",
            "delivery": "a parcel that is late, lost, damaged or at the wrong address",
            "technical": "the app, website or device crashes, shows an error or does not work",
            "account": "signing in, password, verification code, e-mail address or personal data",
            "returns": "sending an item back, exchanging it, wrong size or colour",
            "sales": "prices, plans, discounts or a quote before buying",
        },
    },
    "urgency": {
        "type": "score",
        "instructions": "How urgent is this message?",
        "criteria": [
            "a general question, there is no hurry",
            "a problem that should be solved this week",
            "a serious problem, the customer is waiting and cannot go on",
            "an emergency: money, data or safety is being lost right now",
        ],
    },
    "refund": {
        "type": "noul",
        "instructions": "The customer wants money back.",
        "criteria": {
            "true": "the customer asks for a refund of money that was paid",
            "false": "the customer asks for something else, not for a refund",
        },
    },
}
"""Three questions about a support ticket, one of each type: the team, the urgency, a wish for a refund."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"triage": TRIAGE}
