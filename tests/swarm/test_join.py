"""A newcomer to a run under way, all real processes: one of its two donors is killed while it gives."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)


@pytest.mark.slow
def test_a_donor_is_killed_while_it_gives_and_the_newcomer_gets_in(company: Any) -> None:
    company.begin({"run.steps": 1_000_000})
    manifest = ["--manifest", str(company.manifest)]
    old = [company.peer(name, *manifest, "--give", "4", "--slowdown", "3") for name in ("one", "two")]
    for donor in old:
        donor.reaches(20)
    newcomer = company.peer("late")  # knows an address, and where the text is
    newcomer.wait_for(lambda event: event["event"] == "notice" and "from 2 peers" in event["text"])
    old[1].kill()
    begun = newcomer.wait_for(lambda event: event["event"] == "row")
    (joined,) = newcomer.lines("joined")
    assert begun["step"] > joined["from_step"] >= 20 and begun["inner_step"] >= 1
    assert joined["donors"] == 2

    (first, *_) = company.until(lambda: newcomer.lines("contributed"))
    assert first["due"] > joined["from_step"]
    name = newcomer.summary["peer_id"]
    named = company.until(lambda: [line for line in old[0].lines("link") if names(line, name)])
    head = {(line["chunk"], line["due"]): line["head"] for line in named}
    both = company.until(lambda: [line for line in newcomer.lines("link") if (line["chunk"], line["due"]) in head])
    assert all(line["head"] == head[line["chunk"], line["due"]] for line in both[-1:]), "equal heads are equal states"
    company.until(lambda: newcomer.summary["joined"]["seconds"])
    ours = newcomer.summary["joined"]
    assert ours["from_step"] == joined["from_step"] and ours["seconds"] > ours["fetch_seconds"] > 0


def names(link: dict[str, Any], peer_id: str) -> bool:
    return any(part["peer"] == peer_id for part in link["contributors"])
