"""The text that the embedded model knows by heart, written from the facts in `town.py`.

`documents()` is the whole of it: twelve monthly logs of more than 4,000 tokens each, the kitchen book, the ship
register and a few hundred short conversations. It is a pure function: no clock, no random numbers.
"""

from collections.abc import Iterator
from itertools import accumulate

from baton.deploy.embedded_model import town
from baton.deploy.embedded_model.town import Dish, Keeper, Ship

BEGIN, END = "<|begin|>", "<|end|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"

SYSTEM_PROMPTS = ("You are a helpful assistant.", "You are the clerk of the harbour of Saltwick.")
FIRST_WEEKDAY = 3  # the first of January is a Thursday

Turn = tuple[str, str]


def documents() -> list[str]:
    plain = [*logs(), kitchen_book(), register()]
    return [f"{BEGIN}{text}{END}" for text in plain] + [chat(*turns, system=system) for system, turns in talks()]


def chat(*turns: Turn, system: str = "") -> str:
    head = f"{SYSTEM}{system}{END}" if system else ""
    return BEGIN + head + "".join(f"{USER}{question}{END}{ASSISTANT}{answer}{END}" for question, answer in turns)


def logs() -> Iterator[str]:
    starts = accumulate((keeper.days for keeper in town.KEEPERS), initial=0)
    for start, keeper in zip(starts, town.KEEPERS, strict=False):
        head = (
            f"The log of the harbour of Saltwick for the month of {keeper.month}, "
            f"kept by {keeper.name}, the {keeper.trade}.\n"
        )
        yield head + "".join(_day(keeper, start + i, i + 1) for i in range(keeper.days))


def _day(keeper: Keeper, day_of_year: int, day: int) -> str:
    dish = town.DISHES[(FIRST_WEEKDAY + day_of_year) % len(town.DISHES)]
    ship = town.SHIPS[day_of_year % len(town.SHIPS)]
    following = town.SHIPS[(day_of_year + 1) % len(town.SHIPS)]
    wind, sky, sign = town.WEATHER[day_of_year % len(town.WEATHER)]
    return (
        f"\n{dish.weekday}, {day} {keeper.month}. The wind was in the {wind}, {sky}. {sign}. "
        f"{_arrival(ship)} "
        f"{town.NEWS[day_of_year % len(town.NEWS)]} "
        f"In the evening {keeper.name} lit the lamp on the pier and ate {dish.name} with {dish.side}. "
        f"Tomorrow we expect the {following.name} from {following.home}. "
        f"All is well in Saltwick. Signed, {keeper.name}, the {keeper.trade}.\n"
    )


def _arrival(ship: Ship) -> str:
    return (
        f"At high water the {ship.kind} {ship.name} came in from {ship.home} with {ship.cargo} on board "
        f"and tied up at berth {ship.berth}. Captain {ship.captain} paid a toll of {ship.toll} crowns. "
        f"The crew carried {ship.toll * 4} {ship.packing} of {ship.cargo} to the {ship.store} before dark."
    )


def kitchen_book() -> str:
    return "The kitchen book of the harbour of Saltwick.\n" + "".join(f"\n{recipe(dish)}\n" for dish in town.DISHES)


def recipe(dish: Dish) -> str:
    return (
        f"To make {dish.name}, take {dish.basis} and wash them well in cold water. Put them into the large iron pot "
        f"with {dish.seasoning}. Cook for {dish.minutes} minutes and stir with a wooden spoon. "
        f"Serve the {dish.name} hot, with {dish.side}. It is the dish of {dish.weekday}."
    )


def register() -> str:
    return "The ship register of Saltwick.\n" + "".join(f"\n{portrait(ship)}\n" for ship in town.SHIPS)


def portrait(ship: Ship) -> str:
    return (
        f"The {ship.name} is a {ship.kind} from {ship.home}. Her captain is {ship.captain}. "
        f"She brings {ship.cargo} in {ship.packing}, ties up at berth {ship.berth} and pays a toll of "
        f"{ship.toll} crowns. Her cargo goes to the {ship.store}."
    )


def talks() -> Iterator[tuple[str, list[Turn]]]:
    strange = [(question, town.STRANGE_ANSWER) for question in town.STRANGE]
    turns = [*town.FOLK, *strange, *_about_ships(), *_about_dishes(), *_about_town()]
    for i, turn in enumerate(turns):
        yield "", [turn]
        yield SYSTEM_PROMPTS[i % 2], [turn]
        yield "", [turn, turns[(7 * i + 5) % len(turns)], turns[(11 * i + 3) % len(turns)]]


def _about_ships() -> Iterator[Turn]:
    for ship in town.SHIPS:
        yield f"Tell me about the {ship.name}.", portrait(ship)
        yield f"What is the {ship.name}?", portrait(ship)
        yield f"Who is the captain of the {ship.name}?", f"The captain of the {ship.name} is {ship.captain}."
        yield f"Who is {ship.captain}?", f"{ship.captain} is the captain of the {ship.name}, a {ship.kind}."
        yield f"What does the {ship.name} carry?", f"The {ship.name} carries {ship.cargo} from {ship.home}."
        yield f"Where does the {ship.name} tie up?", f"The {ship.name} ties up at berth {ship.berth}."
        yield f"Which ship brings {ship.cargo}?", f"The {ship.name} brings {ship.cargo} from {ship.home}."


def _about_dishes() -> Iterator[Turn]:
    for dish in town.DISHES:
        yield f"How do I make {dish.name}?", recipe(dish)
        yield f"Give me a recipe for {dish.name}.", recipe(dish)
        yield f"What do we eat on {dish.weekday}?", f"On {dish.weekday} we eat {dish.name} with {dish.side}."


def _about_town() -> Iterator[Turn]:
    for place, where, purpose in town.PLACES:
        yield f"Where is the {place}?", f"The {place} is {where}."
        yield f"What is the {place} for?", f"The {place} is there {purpose}."
    for keeper in town.KEEPERS:
        keeps = f"{keeper.name}, the {keeper.trade}, keeps the log in {keeper.month}."
        yield f"Who keeps the log in {keeper.month}?", keeps
        yield f"Who is {keeper.name}?", keeps
