from baton.proxy.nodes.roster import Roster


def test_sources_add_up() -> None:
    """A URL that two of them name is one member, and stays while one names it."""
    roster = Roster()
    roster.name("configuration", ("http://a", "http://b"))
    roster.name("admin", ("http://b", "http://c"))
    assert roster.wanted() == ["http://a", "http://b", "http://c"]

    roster.name("configuration", ())

    assert roster.wanted() == ["http://b", "http://c"]


def test_a_removed_url_stays_out_while_it_is_named() -> None:
    """A DNS name goes on listing what an operator has removed."""
    roster = Roster()
    roster.name("dns://p:1", ("http://a", "http://b"))

    roster.remove("http://a")
    roster.name("dns://p:1", ("http://a", "http://c"))

    assert roster.wanted() == ["http://c"]
    assert roster.removed == ["http://a"]


def test_a_removal_ends_with_the_last_source_that_names_the_url() -> None:
    """The address may belong to another replica when it comes back."""
    roster = Roster()
    roster.name("dns://p:1", ("http://a",))
    roster.remove("http://a")

    roster.name("dns://p:1", ())
    roster.name("dns://p:1", ("http://a",))

    assert roster.wanted() == ["http://a"]


def test_a_removal_can_be_taken_back() -> None:
    """What an operator adds again is wanted again."""
    roster = Roster()
    roster.name("configuration", ("http://a",))
    roster.remove("http://a")

    roster.restore("http://a")

    assert roster.wanted() == ["http://a"]


def test_removing_what_nobody_names_leaves_nothing_behind() -> None:
    """Or it would be kept out later, for no reason that anybody remembers."""
    roster = Roster()
    roster.remove("http://a")

    assert roster.removed == []
