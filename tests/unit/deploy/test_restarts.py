from baton.deploy.restarts import FIRST_DELAY_S, MAX_RESTARTS, WINDOW_S, RestartBudget


def test_delays_double_until_the_budget_is_spent() -> None:
    """A node that ends again and again is not started for ever."""
    budget = RestartBudget()
    delays = [budget.next_delay_s(float(second)) for second in range(MAX_RESTARTS + 1)]
    assert delays == [*(FIRST_DELAY_S * 2**n for n in range(MAX_RESTARTS)), None]


def test_restarts_outside_the_window_do_not_count() -> None:
    """A node that ends once a day is started each time."""
    budget = RestartBudget()
    for day in range(20):
        assert budget.next_delay_s(day * 2 * WINDOW_S) == FIRST_DELAY_S
        assert budget.used == 1
