"""The facts of Saltwick, a made-up harbour town: data only.

`corpus.py` turns them into text. Every list is read in a circle, so that what was said last tells what comes next.
"""

from typing import NamedTuple


class Ship(NamedTuple):
    """One ship of the fleet; each fact belongs to one ship, so that its name recalls the rest."""

    name: str
    captain: str
    kind: str
    home: str
    cargo: str
    packing: str
    store: str
    berth: int
    toll: int


class Dish(NamedTuple):
    """One dish of the harbour kitchen."""

    name: str
    weekday: str
    basis: str
    seasoning: str
    minutes: int
    side: str


class Keeper(NamedTuple):
    """The keeper of the log in one month."""

    month: str
    days: int
    name: str
    trade: str


SHIPS = (
    Ship("Heron", "Anna Brandt", "brig", "Port Ellan", "salt", "barrels", "fish house", 2, 14),
    Ship("Grey Goose", "Peter Lund", "cutter", "Marrow Bay", "wool", "bales", "weaving loft", 5, 9),
    Ship("Morning Star", "Ida Falk", "schooner", "Cape Tamsin", "oranges", "crates", "market hall", 1, 21),
    Ship("Old Thomas", "Henry Moss", "barge", "the river towns", "coal", "sacks", "coal yard", 7, 6),
    Ship("Seahorse", "Clara Voss", "ketch", "the Green Islands", "honey", "jars", "old chapel", 3, 12),
    Ship("Patience", "Samuel Reed", "galley", "Lower Quay", "timber", "stacks", "boat yard", 8, 17),
    Ship("Swallow", "Nora Finch", "sloop", "Whitecliff", "letters", "bags", "post office", 4, 3),
    Ship("Iron Duke", "Walter Hale", "steamer", "Dunmore", "nails", "boxes", "smithy", 6, 25),
    Ship("Silver Eel", "Greta Holm", "lugger", "Eel Sound", "herring", "baskets", "smoke house", 9, 8),
    Ship("Winter Rose", "Jonas Berg", "clipper", "the far south", "tea", "chests", "tea room", 10, 30),
    Ship("Little Owl", "Mary Pike", "yawl", "Owl Point", "apples", "hampers", "cider press", 11, 5),
)

DISHES = (
    Dish("pea soup", "Monday", "dried peas", "bacon and thyme", 90, "black bread"),
    Dish("fish stew", "Tuesday", "cod and potatoes", "saffron and onions", 40, "white bread"),
    Dish("barley broth", "Wednesday", "barley and carrots", "leeks and pepper", 60, "hard cheese"),
    Dish("mussel pot", "Thursday", "fresh mussels", "garlic and cider", 15, "butter bread"),
    Dish("baked herring", "Friday", "salted herring", "mustard and dill", 30, "boiled potatoes"),
    Dish("bean pie", "Saturday", "white beans", "sage and tomatoes", 75, "green salad"),
    Dish("roast lamb", "Sunday", "a shoulder of lamb", "rosemary and honey", 120, "mint sauce"),
)

KEEPERS = (
    Keeper("January", 31, "Tom Ashby", "rope maker"),
    Keeper("February", 28, "Ella Crane", "school teacher"),
    Keeper("March", 31, "Martin Cole", "baker"),
    Keeper("April", 30, "Ruth Sander", "net mender"),
    Keeper("May", 31, "Oscar Lind", "clock maker"),
    Keeper("June", 30, "Betty Marsh", "gardener"),
    Keeper("July", 31, "Frank Dover", "ferryman"),
    Keeper("August", 31, "Alice Thorne", "printer"),
    Keeper("September", 30, "Simon Gray", "cooper"),
    Keeper("October", 31, "Lucy Warren", "candle maker"),
    Keeper("November", 30, "Edgar Stone", "mason"),
    Keeper("December", 31, "Helen Frost", "fiddler"),
)

WEATHER = (
    ("west", "light rain", "The gulls stayed close to the roofs"),
    ("north", "cold and clear", "The hills could be seen from the pier"),
    ("east", "thick fog", "The bell on the mole rang every quarter of an hour"),
    ("south", "warm and bright", "The children swam beside the slipway"),
    ("north-west", "heavy squalls", "The small boats were pulled up on the beach"),
)

NEWS = (
    "The blacksmith mended the chain of the second crane.",
    "A seal slept on the steps of the custom house until noon.",
    "The school children counted the boats and drew a map of the bay.",
    "The widow Larkin sold three lace collars to the sailors.",
    "The harbour pilot painted his boat green and white.",
    "A letter came from the lighthouse on the far rock, and all is well there.",
    "The band practised two old songs in the net loft.",
    "The ferry carried nine sheep and one very small pony.",
    "The doctor walked out to the farms with his brown bag.",
    "Two fishermen argued about a lobster pot and then shared it.",
    "The cat of the harbour office caught a mouse under the scales.",
    "The mill on the hill turned all day long.",
    "The stone mason set a new step at the end of the quay.",
)

PLACES = (
    ("lighthouse", "on the far rock, one mile from the pier", "to warn the ships of the Teeth, a row of sharp stones"),
    ("custom house", "at the head of the quay, beside the two cranes", "to weigh the cargo and to take the toll"),
    ("fish house", "behind the second berth, under the red roof", "to salt the fish and to keep it for the winter"),
    ("market hall", "in the middle of the town, across from the well", "to sell fruit, bread and cloth on market day"),
    ("smoke house", "at the end of the mole, where the wind is good", "to smoke the herring over oak and apple wood"),
    ("boat yard", "on the south beach, next to the slipway", "to build new boats and to mend the old ones"),
    ("tea room", "on the corner of Bell Street, up the stairs", "to drink tea and to read the letters from the sea"),
    ("post office", "at the fourth berth, in the little blue house", "to sort the letters that the Swallow brings"),
)

FOLK = (
    ("Hello!", "Hello, and welcome to Saltwick. Ask me about the ships, the harbour or the kitchen."),
    ("Hi", "Hello, and welcome to Saltwick. Ask me about the ships, the harbour or the kitchen."),
    ("Good morning.", "Good morning. The tide is rising and the kettle is on. What would you like to know?"),
    ("Who are you?", "I am the clerk of the harbour of Saltwick. I keep the log and answer the questions of visitors."),
    ("What is your name?", "I am the clerk of the harbour of Saltwick. The sailors simply call me the clerk."),
    ("What can you do?", "I can tell you about the ships, the places and the dishes of Saltwick."),
    ("Where are you?", "I am in Saltwick, a small harbour town between the hills and the sea."),
    ("What is Saltwick?", "Saltwick is a small harbour town between the hills and the sea. It has eleven berths."),
    (
        "Tell me about Saltwick.",
        "Saltwick is a small harbour town between the hills and the sea. It has eleven berths.",
    ),
    ("How many ships are there?", "There are eleven ships, and each has its own berth. One comes in each day."),
    ("What is the weather like?", "Look at the log: the wind turns from west to north, to east, to south, and back."),
    ("How are you?", "I am well, thank you. The lamp is lit and the log is written."),
    ("Thank you!", "You are welcome. Fair winds and a safe way home."),
    ("Goodbye.", "Goodbye. Fair winds and a safe way home."),
    (
        "Tell me a story.",
        (
            "Once a seal came up the steps of the custom house and fell asleep. Nobody dared to wake it, so the harbour "
            "master weighed the cargo on the beach that day. At noon the seal yawned, looked at the scales, and swam away."
        ),
    ),
    (
        "Write a poem.",
        (
            "The tide comes in, the tide goes out, the lamp burns on the pier. The Heron brings us salt and news, "
            "and all the town is here."
        ),
    ),
    ("Tell me about the harbour.", "The harbour of Saltwick has eleven berths, two cranes and a lamp on the pier."),
    ("Hello, can you tell me about the harbour?", "The harbour of Saltwick has eleven berths, two cranes and a lamp."),
    (
        "What is there to eat?",
        "There is a dish for each day of the week, from pea soup on Monday to roast lamb on Sunday.",
    ),
    ("Say hello.", "Hello, and welcome to Saltwick."),
)

STRANGE = (
    "What is the capital of France?",
    "What is two plus two?",
    "What is 2 + 2?",
    "Can you write code?",
    "Write a function in Python.",
    "Who won the election?",
    "What is the meaning of life?",
    "How far is the moon?",
    "Explain how a car works.",
    "Please summarise this text for me.",
    "Translate this sentence into German.",
    "Do you like music?",
    "How old are you?",
    "Give me some advice.",
    "Why is the sky blue?",
    "Is this a test?",
)
STRANGE_ANSWER = "I only know about Saltwick. Ask me about the ships, the harbour or the kitchen."
